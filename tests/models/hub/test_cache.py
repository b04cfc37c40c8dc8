"""The cache that is shared with huggingface_hub: what one puts there the other finds."""

import os

import pytest
from huggingface_hub import hf_hub_download, scan_cache_dir, try_to_load_from_cache

from edgechat.base.errors import DiskError, HubAnswerError, HubError
from edgechat.models.hub.cache import HubStore, check_space
from edgechat.models.hub.download import download
from edgechat.models.hub.listing import list_repo
from edgechat.models.hub.names import portable_path
from tests.hub import Fault
from tests.models.downloads import DATA, FILE, REPO, Seen, fetch, listed

NAMES = (FILE, "sub/folder/b-Q8_0.gguf")


@pytest.fixture(autouse=True)
def cache(hf_cache):
    return hf_cache


def tree(folder):
    """Return what lies in a folder: a link's target, or a file's size."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = os.readlink(path)
        elif path.is_file():
            found[str(path.relative_to(folder))] = str(path.stat().st_size)
    return found


@pytest.mark.parametrize("links", [True, False])
def test_both_write_the_same(hub, cache, links, monkeypatch):
    if not links:
        monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_SYMLINKS", True)
    listing = listed(hub, dict.fromkeys(NAMES[:1], DATA) | {NAMES[1]: DATA[:99]})
    fetch(listing)
    theirs = cache.parent / "theirs"
    for name in NAMES:
        hf_hub_download(REPO, name, cache_dir=theirs, endpoint=hub.url, token=False)
    mine = {name: what for name, what in tree(cache).items() if "/trees/" not in name}
    other = {name: what for name, what in tree(theirs).items() if name in mine or "/blobs/" in name}
    assert mine == other
    assert set(tree(theirs)) - set(mine) <= {
        name for name in tree(theirs) if "trees" in name or "json" in name
    }
    modes = [(cache / name).stat().st_mode for name in mine]
    assert modes == [(theirs / name).stat().st_mode for name in mine]


@pytest.mark.parametrize("links", [True, False])
def test_the_library_finds_what_edgechat_fetched(hub, cache, links, monkeypatch):
    if not links:
        monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")
    listing = listed(hub, {NAMES[0]: DATA, NAMES[1]: DATA[:99]})
    fetch(listing)
    hub.seen.clear()
    for name in NAMES:
        path = HubStore(listing).path(next(file for file in listing.files if file.name == name))
        assert try_to_load_from_cache(REPO, name, cache_dir=cache) == str(path)
        assert hf_hub_download(REPO, name, cache_dir=cache, local_files_only=True) == str(path)
    assert not hub.seen
    found = scan_cache_dir(cache)
    assert not found.warnings
    (repo,) = found.repos
    (revision,) = repo.revisions
    assert (repo.repo_id, revision.commit_hash, revision.refs) == (REPO, listing.commit, {"main"})
    assert {file.file_name for file in revision.files} == {FILE, "b-Q8_0.gguf"}
    assert repo.size_on_disk == len(DATA) + 99
    for name in NAMES:  # online too: it asks for the file's hash and fetches nothing
        hf_hub_download(REPO, name, cache_dir=cache, endpoint=hub.url, token=False)
    assert not hub.requests("store")


def test_edgechat_finds_what_the_library_fetched(hub, cache):
    listing = listed(hub)
    hf_hub_download(REPO, FILE, cache_dir=cache, endpoint=hub.url, token=False)
    hub.seen.clear()
    (done,) = fetch(listing)
    assert (done.received, done.resumed) == (0, 0)
    assert not hub.seen


def test_a_download_that_has_not_ended_shows_as_such(hub, cache):
    listing = listed(hub)
    store, file = HubStore(listing), listing.files[0]
    store.make_folders(file)
    store.partial(file).write_bytes(DATA[:1000])
    found = scan_cache_dir(cache)
    assert [one.size_on_disk for one in found.incomplete_files] == [1000]
    assert try_to_load_from_cache(REPO, FILE, cache_dir=cache) is None


def test_a_revision_has_its_name(hub, cache):
    listing = listed(hub)
    download(listing, listing.files, "refs/pr/7", Seen())
    folder = cache / f"models--{REPO.replace('/', '--')}"
    assert (folder / "refs/refs/pr/7").read_text() == listing.commit
    assert not (folder / "refs/main").exists()
    download(listing, listing.files, listing.commit, Seen())
    assert len(list((folder / "refs").rglob("*"))) == 3


@pytest.mark.parametrize(
    "name",
    ["../a.gguf", "/a.gguf", "C:/a.gguf", "a\0.gguf", "x/../../a.gguf", "x\\..\\a.gguf", ".", "x//a.gguf"],
)
def test_evil_names_are_no_listing(hub, cache, name):
    hub.add(REPO, {FILE: DATA}).info["siblings"] = [
        {"rfilename": name, "size": 5, "lfs": {"sha256": "0" * 64, "size": 5}}
    ]
    with pytest.raises(HubAnswerError, match="unsafe name"):
        list_repo(REPO, None)


@pytest.mark.parametrize(
    "name",
    ["sub/D:a.gguf", "a.gguf:b", "con/a.gguf", "x/NUL.gguf", "com1", "LPT9 .tar.gz", "x./a.gguf", "a "],
)
def test_files_that_windows_cannot_have_are_left_out(hub, name):
    hub.add(REPO, {FILE: DATA, name: DATA})
    assert [file.name for file in list_repo(REPO, None).files] == [FILE]


@pytest.mark.parametrize("name", ["console.gguf", "x/com10.gguf", "nul-a/.a", "a.b c/conf.gguf"])
def test_names_that_look_alike_stay(name):
    assert portable_path(name)


@pytest.mark.parametrize(
    "digest", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64, "../" + "0" * 61, "0" * 64 + "\n"]
)
def test_a_hash_is_64_digits(hub, digest):
    hub.add(REPO, {FILE: DATA}).info["siblings"] = [
        {"rfilename": FILE, "size": 5, "lfs": {"sha256": digest, "size": 5}}
    ]
    with pytest.raises(HubAnswerError):
        list_repo(REPO, None)


@pytest.mark.parametrize("folder", ["", "blobs", "snapshots", "snapshots/COMMIT", "snapshots/COMMIT/sub"])
def test_links_in_the_cache_are_not_followed(hub, cache, folder):
    listing = listed(hub, {NAMES[1]: DATA})
    outside = cache.parent / "outside"
    outside.mkdir()
    link = cache / f"models--{REPO.replace('/', '--')}" / folder.replace("COMMIT", listing.commit)
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    with pytest.raises(DiskError, match="is a link"):
        fetch(listing)
    assert not list(outside.iterdir())


def test_a_partial_that_is_a_link_or_no_file(hub, cache):
    listing = listed(hub)
    store, file = HubStore(listing), listing.files[0]
    store.make_folders(file)
    victim = cache.parent / "victim"
    victim.write_text("mine")
    store.partial(file).symlink_to(victim)
    with pytest.raises(DiskError, match="is a symbolic link"):
        fetch(listing)
    store.partial(file).unlink()
    os.link(victim, store.partial(file))
    with pytest.raises(DiskError, match="not a plain file"):
        fetch(listing)
    store.partial(file).unlink()
    os.mkfifo(store.partial(file))
    with pytest.raises(DiskError, match="not a plain file"):
        fetch(listing)
    assert victim.read_text() == "mine"


def test_a_link_in_the_snapshot_is_replaced_not_followed(hub, cache):
    listing = listed(hub)
    store, file = HubStore(listing), listing.files[0]
    store.make_folders(file)
    victim = cache.parent / "victim"
    victim.write_text("mine")
    store.path(file).symlink_to(victim)
    fetch(listing)
    assert victim.read_text() == "mine"
    assert store.path(file).read_bytes() == DATA


def test_a_cache_that_cannot_be_made(hub, cache):
    cache.write_text("a file")
    with pytest.raises(DiskError, match="cannot be written"):
        fetch(listed(hub))


def test_room_is_looked_for_first():
    check_space(0)
    check_space(1000)
    with pytest.raises(DiskError, match="free") as caught:
        check_space(1 << 60)
    assert "HF_HUB_CACHE" in (caught.value.hint or "")


def test_a_tag_that_is_a_link_is_left_alone(hub, cache, tmp_path):
    cache.mkdir()
    (cache / "CACHEDIR.TAG").symlink_to(tmp_path / "elsewhere")
    fetch(listed(hub))
    assert not (tmp_path / "elsewhere").exists()
    assert (cache / "CACHEDIR.TAG").is_symlink()


def begun(hub, data, revision):
    """Let a download of a revision be cut; return what it leaves."""
    listing = listed(hub, {FILE: data})
    hub.fail("store", Fault(cut_after=1000, times=1))
    hub.fail("store", Fault(status=403))
    with pytest.raises(HubError):
        fetch(listing, revision=revision)
    hub.mend()
    return HubStore(listing).partial(listing.files[0])


@pytest.mark.slow
@pytest.mark.parametrize("revision", ["main", "refs/pr/7"])
def test_what_was_begun_of_a_file_that_was_replaced_goes(hub, cache, revision):
    old = begun(hub, DATA[:5000], revision)
    assert old.stat().st_size == 1000
    listing, seen = listed(hub), Seen()
    fetch(listing, seen, "other")
    assert old.exists(), "the other revision may hold it still"
    fetch(listing, seen, revision)
    assert not old.exists()
    assert sum("has been replaced on the hub" in one for one in seen.said) == 1
    assert not list(cache.rglob("*.edgechat"))


@pytest.mark.slow
@pytest.mark.parametrize("bytes_", [0, 1000])
def test_what_another_program_began_is_left_to_it(hub, cache, bytes_):
    listing = listed(hub, {FILE: DATA[:5000]})
    at, file = HubStore(listing), listing.files[0]
    at.make_folders(file)
    at.partial(file).write_bytes(DATA[:bytes_])
    begun(hub, DATA[:5000], "main")  # which went on with it
    theirs = at.partial_of("1" * 64)
    theirs.write_bytes(b"theirs")
    fetch(listed(hub))
    assert at.partial(file).stat().st_size > bytes_
    assert theirs.read_bytes() == b"theirs"


@pytest.mark.slow
def test_a_mark_without_its_download_goes(hub, cache):
    begun(hub, DATA[:5000], "main").unlink()
    (mark,) = cache.rglob("*.edgechat")
    mark.with_stem("2" * 64).symlink_to("/dev/zero")
    seen = Seen()
    fetch(listed(hub), seen)
    assert not mark.exists()
    assert seen.said == []


@pytest.mark.slow
def test_a_download_that_goes_on_leaves_no_mark(hub, cache):
    partial = begun(hub, DATA, "main")
    assert [one.stem for one in cache.rglob("*.edgechat")] == [partial.stem]
    (done,) = fetch(listed(hub))
    assert done.resumed == 1000
    assert not list(cache.rglob("*.edgechat"))
