"""Files that plain HTTP does not give: fetched by huggingface_hub, in a process that can be ended."""

import importlib.util
import threading

import psutil
import pytest

from edgechat.base.errors import DiskError, HubError, HubUnreachable, WrongBytes
from edgechat.models.hub import download as module
from edgechat.models.hub.download import DownloadStopped, download
from tests.hub import Fault
from tests.models.downloads import SIZE, Seen, complete, fetch, listed, refused, store

pytestmark = pytest.mark.usefixtures("hf_cache", "no_waits")


@pytest.fixture(autouse=True)
def threshold(monkeypatch):
    """Let the file of the tests be too large for plain HTTP."""
    monkeypatch.setattr(module, "MOST", SIZE - 1)


def nothing_is_left(hf_cache):
    return not list(hf_cache.rglob(".xet/*")) and not [
        one for one in psutil.Process().children() if "xet" in one.cmdline()
    ]


@pytest.mark.slow
def test_it_comes_whole_and_verified_into_the_cache(hub, hf_cache):
    listing, seen = listed(hub), Seen()
    (done,) = fetch(listing, seen)
    assert (done.resumed, done.received) == (0, SIZE)
    assert complete(listing)
    assert (seen.here[-1], seen.hashed) == (SIZE, SIZE)
    assert any("hf_hub" in (one.headers.get("User-Agent") or "") for one in hub.seen)
    assert nothing_is_left(hf_cache)
    hub.seen.clear()
    fetch(listing)
    assert not hub.seen


@pytest.mark.slow
def test_other_bytes_are_thrown_away(hub, hf_cache):
    listing = listed(hub)
    hub.fail("store", Fault(body=bytes(SIZE)))
    refused(WrongBytes, listing)
    assert nothing_is_left(hf_cache)
    hub.mend()
    fetch(listing)
    assert complete(listing)


@pytest.mark.slow
def test_a_hub_that_refuses_is_told_of(hub, hf_cache):
    listing = listed(hub)
    hub.fail("resolve", Fault(status=404))
    assert "through hf-xet" in str(refused(HubUnreachable, listing))
    assert nothing_is_left(hf_cache)


@pytest.mark.slow
def test_it_can_be_stopped(hub, hf_cache):
    listing, stop = listed(hub), threading.Event()
    hub.fail("store", Fault(piece=1 << 14, pause=0.2))

    class Stopping(Seen):
        def has(self, file, n):
            super().has(file, n)
            if hub.requests("store"):
                stop.set()

    with pytest.raises(DownloadStopped):
        download(listing, listing.files, "main", Stopping(), stop)
    assert nothing_is_left(hf_cache)
    at, file = store(listing)
    assert not at.blob(file).exists()


@pytest.mark.slow
def test_a_full_disk_is_named(hub, small_disk):
    assert "full" in str(refused(DiskError, listed(hub)))


@pytest.mark.parametrize(
    ("frozen", "command"), [(False, "edgechat[xet]"), (True, "hf download owner/a-GGUF")]
)
def test_without_hf_xet_the_way_to_get_it_is_told(hub, monkeypatch, frozen, command):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *more: None if name == "hf_xet" else real(name, *more)
    )
    monkeypatch.setattr("edgechat.base.process.spawn.frozen", lambda: frozen)
    error = refused(HubError, listed(hub))
    assert isinstance(error, HubError)
    assert command in (error.hint or "")
