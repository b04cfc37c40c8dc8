"""Downloads: whatever goes wrong on the way, there are the right bytes in the end."""

import hashlib
import random
import subprocess
import threading
import time
from dataclasses import replace

import pytest
from filelock import FileLock

from edgechat.base.errors import (
    DiskError,
    HubUnreachable,
    RateLimited,
)
from edgechat.models.hub import client
from edgechat.models.hub import download as module
from edgechat.models.hub.cache import HubStore, Partial
from edgechat.models.hub.listing import list_repo
from tests.hub import Fault, took
from tests.models.downloads import (
    DATA,
    FILE,
    REPO,
    SIZE,
    Seen,
    complete,
    fetch,
    forget,
    keep,
    listed,
    refused,
    store,
)

pytestmark = pytest.mark.usefixtures("hf_cache", "no_waits", "impatient")


def test_it_comes_whole(hub):
    listing, seen = listed(hub), Seen()
    (done,) = fetch(listing, seen)
    assert (done.resumed, done.received) == (0, SIZE)
    assert complete(listing)
    assert seen.here[0] == 0
    assert seen.here[-1] == SIZE
    assert seen.here == sorted(seen.here)
    (request,) = hub.requests("store")
    assert request.range is None


def test_what_is_here_is_not_fetched_again(hub):
    listing = listed(hub)
    fetch(listing)
    hub.seen.clear()
    (done,) = fetch(listing)
    assert (done.resumed, done.received) == (0, 0)
    assert not hub.seen
    at, file = store(listing)
    at.path(file).unlink()
    fetch(listing)  # the bytes are here: another commit's, say
    assert complete(listing)
    assert not hub.seen


@pytest.mark.parametrize("kept", [0, 1, 65_535, 65_536, 65_537, SIZE - 1, SIZE])
def test_it_goes_on_from_what_was_kept(hub, kept):
    listing, seen = listed(hub), Seen()
    keep(listing, DATA[:kept])
    (done,) = fetch(listing, seen)
    assert (done.resumed, done.received, seen.hashed) == (kept, SIZE - kept, kept)
    assert seen.names == {FILE}
    assert complete(listing)
    ranges = [one.range for one in hub.requests("store")]
    assert ranges == {0: [None], SIZE: []}.get(kept, [(kept, SIZE - 1)])


def test_what_was_kept_and_is_damaged_starts_anew(hub):
    listing, seen = listed(hub), Seen()
    for kept in (bytes(1000), bytes(SIZE), bytes(SIZE + 1)):
        keep(listing, kept)
        (done,) = fetch(listing, seen)
        assert complete(listing)
        assert (done.resumed, done.received) == (0, SIZE)
        forget(listing)
    assert seen.said == [f"The partial download of {FILE} is damaged; starting again."] * 2


@pytest.mark.slow
def test_cut_at_random_bytes(hub):
    listing, seen, random_ = listed(hub), Seen(), random.Random(7)
    for _ in range(12):
        hub.fail("store", Fault(cut_after=random_.randrange(SIZE // 8), times=1))
    fetch(listing, seen)
    assert complete(listing)
    ranges = [one.range or (0, 0) for one in hub.requests("store")]
    assert len(ranges) == 13
    assert all("If-Range" in one.headers for one in hub.requests("store")[1:] if one.range)
    assert len(seen.said) == 12
    starts = [one[0] for one in ranges]
    assert starts == sorted(starts), "no byte comes twice"


@pytest.mark.slow
@pytest.mark.parametrize("chunked", [False, True])
def test_silence_is_not_waited_out(hub, chunked):
    listing = listed(hub)
    hub.fail("store", Fault(cut_after=1_000_000, chunked=chunked, times=1))
    hub.fail("store", Fault(pause=600, chunked=chunked, times=2))
    hub.fail("resolve", Fault(wait=600, times=1))
    fetch(listing)
    assert complete(listing)


@pytest.mark.slow
def test_slow_is_not_silent(hub):
    """There is no limit for the whole: 4 s here, of which a pause may be 0.5."""
    listing = listed(hub, {FILE: DATA[:40_000]})
    hub.fail("store", Fault(pause=0.1, piece=1000))
    fetch(listing)
    assert complete(listing, DATA[:40_000])


@pytest.mark.slow
def test_a_crawl_is_not_for_ever(hub, monkeypatch):
    """A byte now and then is never silence."""
    listing = listed(hub)
    monkeypatch.setattr(client, "PATIENCE", 0.3)
    hub.fail("store", Fault(pause=0.05, piece=10))
    error = refused(HubUnreachable, listing)
    assert "too slow: less than 1024 bytes per second" in str(error)
    assert "run the same command again" in (getattr(error, "hint", None) or "")
    hub.mend()
    hub.fail("store", Fault(pause=0.05, piece=10, times=1))
    fetch(listing)  # the next connection is a better one
    assert complete(listing)


@pytest.mark.slow
def test_a_slow_disk_is_no_crawl(hub, monkeypatch):
    listing, real, seen = listed(hub, {FILE: DATA[:2000]}), Partial.write, Seen()

    def write(self, piece):
        time.sleep(0.5)
        real(self, piece)

    monkeypatch.setattr(Partial, "write", write)
    monkeypatch.setattr(client, "PATIENCE", 0.3)
    hub.fail("store", Fault(pause=0.01, piece=500))
    fetch(listing, seen)
    assert complete(listing, DATA[:2000])
    assert seen.said == []


@pytest.mark.slow
def test_a_slow_disk_is_no_silence(hub, monkeypatch):
    listing, real, slept = listed(hub), Partial.write, []

    def write(self, piece):
        if not slept:
            slept.append(time.sleep(2))
        real(self, piece)

    monkeypatch.setattr(Partial, "write", write)
    seen = Seen()
    fetch(listing, seen)
    assert complete(listing)
    assert (seen.said, len(hub.requests("store"))) == ([], 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(status=500), HubUnreachable),
        (Fault(status=503), HubUnreachable),
        (Fault(drop=True), HubUnreachable),
        (Fault(status=429, headers={"Retry-After": "1"}), RateLimited),
    ],
)
def test_trouble_that_passes(hub, fault, kind):
    listing, seen = listed(hub), Seen()
    hub.fail("store", replace(fault, times=1))
    hub.fail("resolve", replace(fault, times=1))
    start = time.monotonic()
    fetch(listing, seen)
    assert complete(listing)
    assert len(seen.said) == 2
    assert took(start) > (2 if kind is RateLimited else 0)
    hub.mend()
    forget(listing)
    keep(listing, DATA[:1000])
    hub.fail("store", replace(fault, headers={}))
    error = refused(kind, listing)
    assert error.hint.endswith(
        " The part that was downloaded is kept; to resume, run the same command again."
    )
    assert store(listing)[0].n_kept(listing.files[0]) == 1000


def test_a_hub_that_wants_to_be_left_alone_for_an_hour(hub):
    listing = listed(hub)
    hub.fail("resolve", Fault(status=429, headers={"Retry-After": "3600"}))
    assert "3600" in str(getattr(refused(RateLimited, listing), "hint", ""))
    assert len(hub.requests("resolve")) == 1


@pytest.mark.parametrize(
    ("error", "failures", "seconds"),
    [
        (HubUnreachable("."), 0, 1),
        (HubUnreachable("."), 2, 9),
        (HubUnreachable("."), 3, None),
        (RateLimited("."), 1, 4),
        (RateLimited(".", seconds=3), 0, 3),
        (RateLimited(".", seconds=3), 1, 4),
        (RateLimited(".", seconds=300), 2, 300),
        (RateLimited(".", seconds=301), 2, None),
        (RateLimited(".", seconds=3), 3, None),
    ],
)
def test_how_long_is_waited(monkeypatch, error, failures, seconds):
    monkeypatch.setattr(module, "WAITS", (1, 4, 9))
    assert module._retry_delay(error, failures) == seconds


def test_waits_are_told_and_progress_begins_them_anew(hub, monkeypatch):
    monkeypatch.setattr(module, "WAITS", (0.01, 0.6, 1.6))
    monkeypatch.setattr(module, "PROGRESS", 100_000)

    class Unwaited(threading.Event):
        def wait(self, timeout=None):
            return False

    listing, seen = listed(hub), Seen()
    for cut in (99_999, 1, 0, 100_000, 0):  # less than progress, in all what is progress, none ...
        hub.fail("store", Fault(cut_after=cut, times=1))
    module.download(listing, listing.files, "main", seen, Unwaited())
    assert complete(listing)
    assert [one.rpartition(" Trying again in ")[2] for one in seen.said] == [
        "0 s.",
        "0 s.",
        "1 s.",
        "0 s.",
        "1 s.",
    ]


@pytest.mark.parametrize("kept", [0, 1000])
def test_it_is_stopped_at_any_moment_and_keeps_what_came(hub, kept):
    listing, stop = listed(hub), threading.Event()

    class Stopping(Seen):
        def has(self, file, n):
            super().has(file, n)
            if n > kept:
                stop.set()

    keep(listing, DATA[:kept])
    with pytest.raises(module.DownloadStopped):
        module.download(listing, listing.files, "main", Stopping(), stop)
    at, file = store(listing)
    assert kept < at.n_kept(file) < SIZE
    with pytest.raises(module.DownloadStopped):  # while what came is hashed again
        module.download(listing, listing.files, "main", seen := Seen(), stop)
    assert not seen.here
    fetch(listing)
    assert complete(listing)


def test_it_is_stopped_while_it_waits(hub):
    for fault in (Fault(status=500), Fault(status=429)):
        listing, stop = listed(hub), threading.Event()
        hub.fail("store", fault)

        class Stopping(Seen):
            def says(self, text, stop=stop):
                super().says(text)
                stop.set()

        seen = Stopping()
        with pytest.raises(module.DownloadStopped):
            module.download(listing, listing.files, "main", seen, stop)
        assert len(seen.said) == 1
        hub.mend()


def test_a_partial_of_a_file_that_was_replaced_is_removed_with_the_next(hub):
    listing = listed(hub)
    keep(listing, DATA[: 2 * 2**20])
    old, file = store(listing)
    hub.add(REPO, {FILE: DATA[::-1]})
    seen = Seen()
    fetch(new := list_repo(REPO, None), seen)
    assert complete(new, DATA[::-1])
    assert not old.partial(file).exists()
    assert seen.said == [
        "Removed an earlier partial download (2 MiB), because the file has been replaced on the hub."
    ]


def test_a_stale_partial_that_another_program_has_is_left_to_it(hub):
    listing = listed(hub)
    keep(listing, DATA[:1000])
    old, file = store(listing)
    hub.add(REPO, {FILE: DATA[::-1]})
    with FileLock(old.lock(file)):
        fetch(new := list_repo(REPO, None))
    assert complete(new, DATA[::-1])
    assert old.partial(file).exists()


@pytest.mark.slow
def test_a_little_each_time_is_not_for_ever(hub):
    listing = listed(hub)
    hub.fail("store", Fault(cut_after=100))
    refused(HubUnreachable, listing)
    assert len(hub.requests("store")) == len(module.WAITS) + 1
    hub.mend()
    hub.fail("store", Fault(cut_after=200_000, ignore_range=True))
    refused(HubUnreachable, listing)
    hub.mend()
    fetch(listing)
    assert complete(listing)


def test_a_split_model_is_put_in_place_when_all_of_it_is_here(hub):
    names = [f"q/big-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    listing = listed(hub, {name: DATA[n * 1000 : n * 1000 + 500_000] for n, name in enumerate(names)})
    hub.fail("store", Fault(status=500, after=2))
    with pytest.raises(HubUnreachable):
        fetch(listing)
    at = HubStore(listing)
    assert not any(at.path(file).exists() for file in listing.files)
    assert sum(at.blob(file).exists() for file in listing.files) == 2
    hub.mend()
    done = fetch(listing)
    assert [one.received > 0 for one in done] == [False, False, True]
    for n, file in enumerate(listing.files):
        assert at.path(file).read_bytes() == DATA[n * 1000 : n * 1000 + 500_000]


@pytest.mark.slow
def test_two_at_once_wait_for_each_other(hub):
    listing, one, other = listed(hub), Seen(), Seen()
    hub.fail("store", Fault(pause=0.02))
    done = []
    first = threading.Thread(target=lambda: done.extend(fetch(listing, one)))
    first.start()
    while not one.here:
        time.sleep(0.01)
    done += fetch(listing, other)
    first.join()
    assert [fetched.received for fetched in done] == [SIZE, 0]
    assert other.said == [f"Another program is downloading {FILE}; waiting for it."]
    assert len(hub.requests("store")) == 1
    assert complete(listing)


def test_a_full_disk_keeps_what_came(hub, small_disk):
    listing = listed(hub)
    error = refused(DiskError, listing)
    assert "full" in str(error)
    at, file = store(listing)
    kept = at.n_kept(file)
    assert 1_000_000 < kept < SIZE
    assert at.partial(file).read_bytes() == DATA[:kept]
    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    (done,) = fetch(listing)
    assert (done.resumed, done.received) == (kept, SIZE - kept)
    assert complete(listing)


@pytest.mark.slow
def test_the_hash_is_that_of_the_bytes(tmp_path):
    partial, random_ = Partial(tmp_path / "p", hashlib.sha256), random.Random(3)
    pieces = [random_.randbytes(random_.randrange(1, 3_000_000)) for _ in range(30)]
    for piece in pieces:
        partial.write(piece)
    assert partial.digest() == hashlib.sha256(b"".join(pieces)).hexdigest()
    partial.finish(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == b"".join(pieces)
    partial.close()
