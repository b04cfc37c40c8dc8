"""The hub without the network: what was seen once is there, and no socket is opened where none may be."""

import json
import subprocess
import sys

import pytest

from edgechat.base.errors import HubUnreachable, OfflineMode, RepoNotFound
from edgechat.models.choices import RemoteFile, RepoListing
from edgechat.models.hub import remote_headers
from edgechat.models.hub.listing import list_repo, resolve_remote
from edgechat.models.hub.names import HubName
from tests.kit import tiny

REPO = "owner/tiny-GGUF"
FILES = {"tiny-Q4_K_M.gguf": b"GGUF1", "tiny-Q8_0.gguf": b"GGUF22"}


def test_what_was_seen_is_seen_without_the_network(hub):
    hub.add(REPO, FILES)
    before = resolve_remote(HubName(REPO), offline=False)
    hub.stop()
    after = resolve_remote(HubName(REPO), offline=False)
    assert after.listing == before.listing
    assert isinstance(after.unasked, HubUnreachable)
    with pytest.raises(HubUnreachable, match="not been examined before"):
        after.header(after.choices[0])
    quiet = resolve_remote(HubName(REPO, "Q8_0"), offline=True)
    assert isinstance(quiet.unasked, OfflineMode)
    with pytest.raises(OfflineMode):
        quiet.header(quiet.choices[0])
    with pytest.raises(OfflineMode, match="offline"):
        resolve_remote(HubName("owner/other"), offline=True)


def test_a_repository_that_went_is_not_shown_from_memory(hub):
    hub.add(REPO, FILES)
    resolve_remote(HubName(REPO), offline=False)
    del hub.repos[REPO]
    with pytest.raises(RepoNotFound):
        resolve_remote(HubName(REPO), offline=False)


def test_a_damaged_cache_is_none(hub, home):
    hub.add(REPO, FILES)
    resolve_remote(HubName(REPO), offline=False)
    (entry,) = (home / "cache/hub/listings").iterdir()
    good = json.loads(entry.read_bytes())
    good["info"]["siblings"][0]["rfilename"] = "../x"
    for damage in (
        b"",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        json.dumps(good).encode(),
        bytes(remote_headers.MAX_BYTES + 1),
    ):
        entry.write_bytes(damage)
        with pytest.raises(OfflineMode):
            resolve_remote(HubName(REPO), offline=True)


def test_the_cache_is_bounded(home):
    for n in range(remote_headers.MAX_LISTINGS + 10):
        remote_headers.store_listing("http://a", f"o/{n}", None, b"x")
        remote_headers.cached_listing("http://a", "o/0", None)
    entries = list((home / "cache/hub/listings").iterdir())
    assert len(entries) == remote_headers.MAX_LISTINGS
    assert remote_headers.cached_listing("http://a", "o/0", None) == b"x"


def test_what_would_not_be_read_is_not_written(home):
    listing = RepoListing("http://a", "o/r", "c" * 40, False, None, (), 0.0)
    file = RemoteFile("mmproj.gguf", 1 << 30, "0" * 64)
    remote_headers.store_start(listing, file, bytes(remote_headers.MAX_BYTES + 1))
    remote_headers.store_listing("http://a", "o/r", None, bytes(remote_headers.MAX_BYTES + 1))
    assert not (home / "cache/hub").exists()


OFFLINE = """
import sys
from edgechat.base.errors import OfflineMode

def watch(event, args):
    if event.startswith("socket."):
        print("opened", event, args, flush=True)

sys.addaudithook(watch)
from edgechat.models.hub.listing import list_repo, resolve_remote
from edgechat.models.hub.names import HubName
offline = sys.argv[1] == "told"
asks = [lambda: resolve_remote(HubName("a/b"), offline=offline), lambda: list_repo("a/b", None)]
for ask in asks[: 1 if offline else 2]:
    try:
        ask()
    except OfflineMode as error:
        print("refused", error.message)
print("imported", [name for name in ("httpx2", "huggingface_hub") if name in sys.modules])
"""


@pytest.mark.parametrize("by", ["EDGECHAT_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "told"])
def test_offline_opens_no_socket(by, monkeypatch):
    for name in ("EDGECHAT_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    if by != "told":
        monkeypatch.setenv(by, "1")
    done = subprocess.run([sys.executable, "-c", OFFLINE, by], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["refused"] * (1 if by == "told" else 2) + ["imported"]
    assert lines[-1] == "imported []"
    assert by == "told" or by in lines[0]


def test_a_kept_header_needs_no_socket_either(hub, monkeypatch):
    hub.add(REPO, {"tiny-F32.gguf": tiny()})
    remote = resolve_remote(HubName(REPO), offline=False)
    header = remote.header(remote.choices[0])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("socket.socket", None)
    again = resolve_remote(HubName(REPO), offline=False)
    assert again.header(again.choices[0]) == header
    with pytest.raises(OfflineMode):
        list_repo(REPO, None)
