"""Downloads that must not end well: there is nothing under the final name, and a reason."""

import hashlib
from dataclasses import replace

import pytest

from edgechat.base.errors import (
    AccessDenied,
    HubAnswerError,
    OfflineMode,
    RemoteFileChanged,
    RepoNotFound,
    WrongBytes,
)
from edgechat.models.hub.listing import list_repo
from tests.hub import TOKEN, Fault
from tests.models.downloads import (
    DATA,
    FILE,
    REPO,
    SIZE,
    complete,
    fetch,
    forget,
    keep,
    listed,
    refused,
    store,
)

pytestmark = pytest.mark.usefixtures("hf_cache", "no_waits", "impatient")


def test_wrong_bytes_are_thrown_away(hub):
    listing = listed(hub)
    hub.fail("store", Fault(body=bytes(SIZE)))
    error = refused(WrongBytes, listing)
    assert error.message == (
        f"The download of {FILE} from {REPO} is corrupt: its SHA-256 does not match. It was deleted."
    )
    assert (
        error.hint
        == "Try again. If this happens again, a proxy or the mirror in HF_ENDPOINT is changing the data."
    )
    at, file = store(listing)
    assert not at.partial(file).exists()
    hub.mend()
    fetch(listing)
    assert complete(listing)


def test_a_file_that_git_itself_keeps_is_held_to_gits_hash(hub):
    listing = listed(hub, {FILE: DATA[:900]})
    git = hashlib.sha1(b"blob 900\0" + DATA[:900]).hexdigest()
    (file,) = listing.files
    listing = replace(listing, files=(replace(file, sha256=None, git_sha1=git),))
    hub.fail("store", Fault(body=bytes(900)))
    assert "is corrupt: its hash does not match." in refused(WrongBytes, listing).message
    hub.mend()
    fetch(listing)
    assert complete(listing, DATA[:900])


def test_one_bit_is_enough(hub):
    listing, bad = listed(hub), bytearray(DATA)
    bad[SIZE // 2] ^= 1
    hub.fail("store", Fault(body=bytes(bad)))
    refused(WrongBytes, listing)


@pytest.mark.parametrize(
    ("place", "headers"),
    [
        ("resolve", {"X-Linked-Etag": f'"{"0" * 64}"'}),
        ("resolve", {"X-Linked-Size": "7"}),
        ("resolve", {"X-Repo-Commit": "0" * 40}),
        ("store", {"Content-Length": str(SIZE + 1)}),
    ],
)
def test_a_file_that_changed_on_the_hub_is_refused(hub, place, headers):
    listing = listed(hub)
    hub.fail(place, Fault(headers=headers))
    refused(RemoteFileChanged, listing)


def test_a_new_file_of_that_name_starts_anew(hub):
    old = listed(hub)
    keep(old, DATA[:1_000_000])
    new = listed(hub, {FILE: DATA[::-1]})
    (done,) = fetch(new)
    assert (done.resumed, done.received) == (0, SIZE)
    assert complete(new, DATA[::-1])
    at, file = store(old)
    assert not at.partial(file).exists(), "nobody will go on with it"
    refused(RepoNotFound, old)  # a commit that the tests' hub has forgotten


_OTHER = {"ETag": '"other"'}
_PART = {"Content-Range": f"bytes 1000000-{SIZE - 1}/{SIZE}", "Content-Length": f"{SIZE - 1_000_000}"}


@pytest.mark.parametrize(
    "fault",
    [
        Fault(headers=_OTHER),
        Fault(headers=_OTHER, ignore_range=True),
        Fault(headers=_OTHER | _PART, status=206, body=DATA[1_000_000:]),
    ],
)
def test_another_etag_in_between_starts_anew(hub, fault):
    """The keeper has another copy: If-Range gets all of it; where it knows no If-Range it is asked again."""
    listing = listed(hub)
    hub.fail("store", Fault(cut_after=1_000_000, times=1))
    hub.fail("store", replace(fault, times=1))
    (done,) = fetch(listing)
    assert complete(listing)
    assert done.received >= SIZE + 1_000_000


@pytest.mark.parametrize(
    "fault",
    [
        Fault(more=b"x" * 100, chunked=True),
        Fault(status=206),
        Fault(
            status=206, headers={"Content-Range": "bytes 5-9/3000000", "Content-Length": "5"}, body=b"12345"
        ),
        Fault(headers={"Content-Encoding": "gzip"}),
        Fault(status=302, headers={"Location": "ftp://127.0.0.1/"}),
        Fault(status=404),
    ],
)
def test_an_answer_that_no_hub_gives(hub, fault):
    listing = listed(hub)
    hub.fail("store", fault)
    refused(HubAnswerError, listing)


def test_who_may_have_it(hub, monkeypatch):
    hub.add(REPO, {FILE: DATA}, gated="manual")
    listing = list_repo(REPO, None)
    error = refused(AccessDenied, listing)
    hint = getattr(error, "hint", "")
    assert f"{hub.url}/{REPO}" in hint
    assert "hf auth login" in hint
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    fetch(listing)
    assert complete(listing)
    assert hub.requests("resolve")[-1].token == f"Bearer {TOKEN}"
    assert {one.token for one in hub.requests("store")} == {None}, "the token stays with the hub"
    forget(listing)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "rejected your token" in str(refused(AccessDenied, listing))


def test_refused_and_gone(hub):
    listing = listed(hub)
    hub.fail("resolve", Fault(status=403, headers={"X-Error-Message": "not you"}, times=1))
    assert "not you" in str(refused(AccessDenied, listing))
    del hub.repos[REPO]
    refused(RepoNotFound, listing)
    assert len(hub.requests("resolve")) == 2


def test_offline_asks_nobody(hub, monkeypatch):
    listing = listed(hub)
    hub.seen.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refused(OfflineMode, listing)
    assert not hub.seen


def test_no_hash_no_download(hub):
    listing = listed(hub)
    bare = replace(listing, files=tuple(replace(file, sha256=None) for file in listing.files))
    with pytest.raises(HubAnswerError, match="no hash"):
        fetch(bare)
