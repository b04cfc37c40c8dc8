"""Listing a repository: what the hub says, what it refuses, and what no hub would say."""

import time
from pathlib import Path

import pytest

from edgechat.base.errors import (
    AccessDenied,
    HubAnswerError,
    HubUnreachable,
    ModelNotFound,
    RateLimited,
    RepoNotFound,
)
from edgechat.models.hub import listing as hub_module
from edgechat.models.hub.listing import list_repo, resolve_remote
from edgechat.models.hub.names import HubName
from tests.hub import TOKEN, Fault
from tests.kit import tiny

pytestmark = pytest.mark.usefixtures("impatient")

REPO = "owner/tiny-GGUF"
FILES = {
    "README.md": b"# tiny",
    "tiny-Q4_K_M.gguf": b"GGUF1",
    "tiny-Q8_0.gguf": b"GGUF22",
    "mmproj-F16.gguf": b"G",
}


def refused(kind, repo=REPO, revision=None):
    with pytest.raises(kind) as caught:
        list_repo(repo, revision)
    assert type(caught.value) is kind
    return caught.value


def answer(hub, **changes):
    """Let the hub's answer differ in some fields."""
    repo = hub.add(REPO, FILES)
    repo.info |= changes


def test_a_listing(hub):
    repo = hub.add(REPO, FILES)
    found = list_repo(REPO, None)
    assert (found.repo, found.commit, found.gated, found.licence) == (REPO, repo.commit, False, "apache-2.0")
    assert {file.name: file.size for file in found.files} == {name: len(data) for name, data in FILES.items()}
    by_name = {file.name: file for file in found.files}
    assert by_name["tiny-Q8_0.gguf"].sha256 == repo.sha256("tiny-Q8_0.gguf")
    assert by_name["README.md"].sha256 is None
    assert abs(found.listed - time.time()) < 60
    assert len(hub.seen) == 1, "nobody else is asked"
    assert list_repo(REPO, repo.commit).files == found.files


def test_the_hubs_own_client_sees_the_same(hub, tmp_path):
    """That the tests' hub is one: huggingface_hub lists it and downloads from it."""
    from huggingface_hub import HfApi, hf_hub_download

    hub.add(REPO, {**FILES, "sub/tiny-Q4_0.gguf": tiny()})
    api = HfApi(endpoint=hub.url, token=False)
    info, mine = api.model_info(REPO, files_metadata=True), list_repo(REPO, None)
    theirs = {one.rfilename: (one.size, one.lfs.sha256 if one.lfs else None) for one in info.siblings or ()}
    assert {file.name: (file.size, file.sha256) for file in mine.files} == theirs
    assert info.sha == mine.commit
    assert [entry.path for entry in api.list_repo_tree(REPO, recursive=True)] == list(theirs)
    path = hf_hub_download(REPO, "sub/tiny-Q4_0.gguf", endpoint=hub.url, cache_dir=tmp_path, token=False)
    assert Path(path).read_bytes() == tiny().read_bytes()
    assert "snapshots/" + mine.commit in Path(path).as_posix()


def test_a_gated_repository_can_be_listed(hub):
    hub.add(REPO, FILES, gated="manual", tags=())
    found = list_repo(REPO, None)
    assert (found.gated, found.licence) == (True, None)


def test_a_missing_repository_with_near_names(hub):
    error = refused(RepoNotFound, "unsloth/Qwen3-4B-Instruct-2507-GUFF")
    assert "unsloth/Qwen3-4B-Instruct-2507-GGUF" in (error.hint or "")
    assert "qwen3-4b" in (error.hint or "")
    error = refused(RepoNotFound, "nobody/zzzzzz")
    assert "or it is private" in error.message
    assert "hf auth login" in (error.hint or "")


def test_a_missing_revision(hub):
    hub.add(REPO, FILES)
    assert "revision" in refused(RepoNotFound, revision="v9").message


def test_a_private_repository_needs_the_token(hub, monkeypatch):
    hub.add(REPO, FILES, private=True)
    refused(RepoNotFound)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert list_repo(REPO, None).files
    assert hub.seen[-1].token == f"Bearer {TOKEN}"
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "rejected your token" in refused(AccessDenied).message


@pytest.mark.parametrize(
    ("headers", "hint"),
    [
        ({"Retry-After": "7"}, "in 7 seconds"),
        ({"RateLimit": '"api";r=0;t=55'}, "in 55 seconds"),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, "in a few minutes"),
        ({"Retry-After": "9" * 5000}, "in a few minutes"),
    ],
)
def test_a_rate_limit(hub, headers, hint):
    hub.add(REPO, FILES)
    hub.fail("api", Fault(status=429, headers=headers))
    assert hint in (refused(RateLimited).hint or "")


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_hub_in_trouble(hub, status):
    hub.add(REPO, FILES)
    hub.fail("api", Fault(status=status))
    assert str(status) in refused(HubUnreachable).message


@pytest.mark.parametrize("status", [204, 304, 400, 410, 418])
def test_an_odd_status(hub, status):
    hub.add(REPO, FILES)
    hub.fail("api", Fault(status=status, headers={"X-Error-Message": "\x1b[2Jgone"}))
    assert "\x1b" not in refused(HubAnswerError).message


def test_forbidden_in_the_hubs_own_words(hub):
    hub.add(REPO, FILES)
    hub.fail("api", Fault(status=403, headers={"X-Error-Message": "Access to this resource is disabled."}))
    assert "disabled" in refused(AccessDenied).message


def test_nobody_listens(hub):
    hub.stop()
    error = refused(HubUnreachable)
    assert "127.0.0.1 is not reachable" in error.message
    assert "without it" in (error.hint or "")


def test_a_name_that_nobody_knows(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
    message = refused(HubUnreachable).message
    assert message == "hub.invalid is not reachable: its name could not be resolved."


def test_a_hub_without_encryption_where_some_was_asked_for(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.url.replace("http:", "https:"))
    assert "SSL" in refused(HubUnreachable).message
    assert not hub.seen


@pytest.mark.slow
def test_a_name_server_that_does_not_answer(hub, monkeypatch):
    monkeypatch.setattr("socket.getaddrinfo", lambda *_a, **_k: time.sleep(600))
    assert "no data" in refused(HubUnreachable).message


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        Fault(wait=600),
        Fault(pause=600),
        Fault(drip_headers=600),
        Fault(cut_after=50),
        Fault(headers={"Content-Length": "999999"}, more=b"x"),
        Fault(chunked=True, cut_after=50),
    ],
)
def test_no_answer_or_half_of_one(hub, fault):
    hub.add(REPO, FILES)
    hub.fail("api", fault)
    refused(HubUnreachable)


DRIPS = [Fault(pause=0.1, piece=10), Fault(drip_headers=0.2, headers={f"X-{n}": "drip" for n in range(30)})]


@pytest.mark.slow
@pytest.mark.parametrize("fault", DRIPS)
def test_a_drip_is_bounded_as_a_whole(hub, fault, monkeypatch):
    hub.add(REPO, {f"{n}-Q4_0.gguf": b"GGUF" for n in range(50)})
    monkeypatch.setattr(hub_module, "LIST_TIME_LIMIT", 1.0)
    hub.fail("api", fault)
    refused(HubUnreachable)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(body=b"<!doctype html><title>Hotel</title>"),
        Fault(body=b""),
        Fault(body=b"[]"),
        Fault(body=b'"\xff"'),
        Fault(body=b"[" * 100_000),
        Fault(body=b'{"sha": ' + b"[" * 100_000),
        Fault(headers={"Content-Encoding": "gzip"}),
        Fault(status=302, headers={"Location": "https://hub.invalid:99999/"}),
        Fault(status=302, headers={"Location": "ftp://127.0.0.1/"}),
        Fault(status=302, headers={"Location": "http://user:secret@127.0.0.1/"}),
        Fault(status=302, headers={"Location": "//"}),
        Fault(status=307, headers={"Location": "/api/models/owner/tiny-GGUF"}),
    ],
)
def test_an_answer_that_no_hub_gives(hub, fault):
    hub.add(REPO, FILES)
    hub.fail("api", fault)
    refused(HubAnswerError)


@pytest.mark.parametrize(
    "changes",
    [
        {"sha": "main"},
        {"sha": None},
        {"sha": "a" * 40 + "\n"},
        {"siblings": None},
        {"siblings": [{"rfilename": 7}]},
        {"siblings": [{"rfilename": "../../.ssh/authorized_keys"}]},
        {"siblings": [{"rfilename": "/etc/passwd"}]},
        {"siblings": [{"rfilename": "C:/a.gguf"}]},
        {"siblings": [{"rfilename": "a\\..\\b.gguf"}]},
        {"siblings": [{"rfilename": "a\x00.gguf"}]},
        {"siblings": [{"rfilename": "a" * 300}]},
        {"siblings": [{"rfilename": "\ud800.gguf"}]},
        {"siblings": [{"rfilename": "a"}, {"rfilename": "a"}]},
        {"siblings": [{"rfilename": "a.gguf", "size": -1}]},
        {"siblings": [{"rfilename": "a.gguf", "size": 2**60}]},
        {"siblings": [{"rfilename": "a.gguf", "size": 1.5}]},
        {"siblings": [{"rfilename": "a.gguf", "size": 5, "lfs": {"sha256": "../../x", "size": 5}}]},
        {"siblings": [{"rfilename": "a.gguf", "size": 5, "lfs": {"sha256": "A" * 64, "size": 5}}]},
        {"siblings": [{"rfilename": "a.gguf", "size": 5, "lfs": {"sha256": "a" * 64 + "\n", "size": 5}}]},
        {"siblings": [{"rfilename": f"{n}"} for n in range(hub_module.MAX_FILES + 1)]},
        {"gated": [1]},
        {"tags": 5},
    ],
)
def test_a_listing_that_makes_no_sense(hub, changes):
    answer(hub, **changes)
    refused(HubAnswerError)
    with pytest.raises(HubAnswerError):
        resolve_remote(HubName(REPO), offline=False)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_listing_larger_than_any(hub, chunked):
    answer(hub, spaces=["x" * hub_module.MAX_LISTING])
    hub.fail("api", Fault(chunked=chunked))
    assert "more than" in refused(HubAnswerError).message


def test_a_renamed_repository_is_found(hub):
    hub.add(REPO, FILES)
    hub.add("old/name", FILES)
    hub.fail("api", Fault(status=307, headers={"Location": f"/api/models/{REPO}?blobs=true"}, times=1))
    assert list_repo("old/name", None).commit == hub.repos[REPO].commit


def test_the_token_stays_with_the_hub(hub, monkeypatch):
    hub.add(REPO, FILES)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.fail("api", Fault(status=302, headers={"Location": f"{hub.store_url}/{REPO}/x"}))
    refused(HubAnswerError)
    assert hub.seen[0].token == f"Bearer {TOKEN}"
    assert [one.token for one in hub.requests("store")] == [None]


def test_the_models_of_a_name(hub):
    repo = hub.add(REPO, FILES)
    remote = resolve_remote(HubName(REPO), offline=False)
    assert (remote.repo, remote.listing.commit, remote.unasked) == (REPO, repo.commit, None)
    assert [one.quant for one in remote.choices] == ["Q4_K_M", "Q8_0"]
    assert [one.quant for one in resolve_remote(HubName(REPO, "Q8_0"), offline=False).choices] == ["Q8_0"]
    named = HubName(REPO, revision="main", file="tiny-Q8_0.gguf")
    assert [one.quant for one in resolve_remote(named, offline=False).choices] == ["Q8_0"]
    with pytest.raises(ModelNotFound, match="has no Q5_K_M") as caught:
        resolve_remote(HubName(REPO, "Q5_K_M"), offline=False)
    assert caught.value.hint == "It has: Q4_K_M, Q8_0."
    with pytest.raises(ModelNotFound, match="mmproj"):
        resolve_remote(HubName(REPO, revision="main", file="mmproj-F16.gguf"), offline=False)
    hub.add(REPO, {"model.safetensors": b"x"})
    with pytest.raises(ModelNotFound, match="neither a GGUF"):
        resolve_remote(HubName(REPO), offline=False)
