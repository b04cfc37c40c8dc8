"""Headers read over HTTP: either what comes is the local header, or there is one typed error."""

import random
import re
from dataclasses import replace

import pytest

from edgechat.base.errors import (
    AccessDenied,
    HubAnswerError,
    HubError,
    HubUnreachable,
    ModelFileError,
    RateLimited,
    RemoteFileChanged,
    RepoNotFound,
)
from edgechat.models.formats.gguf import FIRST_READ, read_model
from edgechat.models.formats.skeleton import pack
from edgechat.models.hub import remote_headers
from edgechat.models.hub.listing import resolve_remote
from edgechat.models.hub.names import HubName
from edgechat.models.hub.remote_headers import read_remote_header
from tests.hub import TOKEN, Fault
from tests.kit import KINDS, Spec, tiny
from tests.kit.build import write
from tests.models.raw import gguf

pytestmark = pytest.mark.usefixtures("impatient")

REPO, FILE = "owner/tiny-GGUF", "tiny-F32.gguf"


@pytest.fixture
def small_reads(monkeypatch):
    """Read in many steps what would be one: 1 KiB, 2 KiB, ..."""
    monkeypatch.setattr("edgechat.models.hub.remote_headers.FIRST_READ", 1024)
    monkeypatch.setattr(remote_headers, "LATER_READ", 256)


def model(hub, file=None):
    hub.add(REPO, {FILE: tiny() if file is None else file})
    return resolve_remote(HubName(REPO), offline=False)


def fresh(found):
    """Read the header of the first choice past the cache."""
    return read_remote_header(found.listing, found.choices[0])


def refused(kind, found):
    with pytest.raises(kind) as caught:
        fresh(found)
    assert type(caught.value) is kind
    return caught.value


def local(path):
    return replace(read_model(path), path=FILE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_header_of_a_remote_file_is_that_of_the_file(hub, kind):
    assert fresh(model(hub, tiny(kind))) == local(tiny(kind))
    (read,) = hub.requests("store")
    assert read.range == (0, min(FIRST_READ, tiny(kind).stat().st_size) - 1)


@pytest.mark.usefixtures("small_reads")
def test_it_is_read_in_growing_steps_and_no_byte_twice(hub):
    assert fresh(model(hub)) == local(tiny())
    ranges = [one.range for one in hub.requests("store")]
    assert ranges[:3] == [(0, 1023), (1024, 2047), (2048, 4095)]
    assert all(one.headers["If-Range"] for one in hub.requests("store")[1:])


def test_only_the_header_is_read_of_a_large_file(hub, monkeypatch):
    monkeypatch.setattr("edgechat.models.hub.remote_headers.FIRST_READ", 65536)
    fresh(model(hub, tiny().read_bytes()))
    assert [one.range for one in hub.requests("store")] == [(0, 65535)]


@pytest.mark.slow
@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize("folder", ["", "F32/"])
def test_a_split_model_is_one(hub, tmp_path, folder):
    write(Spec(name="split"), tmp_path / "a-F32.gguf", split_max_tensors=7)
    parts = sorted(tmp_path.glob("a-F32-*.gguf"))
    assert len(parts) > 2
    hub.add(REPO, {folder + part.name: part for part in reversed(parts)})
    found = resolve_remote(HubName(REPO), offline=False)
    assert fresh(found) == read_model(parts[0])
    assert found.header(found.choices[0]).n_params == read_model(parts[0]).n_params


def test_a_part_in_the_wrong_place(hub, tmp_path):
    write(Spec(name="split"), tmp_path / "a-F32.gguf", split_max_tensors=7)
    parts = sorted(tmp_path.glob("a-F32-*.gguf"))
    hub.add(REPO, {part.name: parts[0] for part in parts})
    with pytest.raises(ModelFileError, match="shard 2"):
        fresh(resolve_remote(HubName(REPO), offline=False))
    with pytest.raises(ModelFileError, match=f"one of {len(parts)} shards"):
        fresh(model(hub, parts[0]))


@pytest.mark.parametrize(
    "data", [b"PK\x03\x04 and so on", b"<!doctype html>", gguf(), b"GGUF", b"version https"]
)
def test_what_is_no_model(hub, data):
    with pytest.raises(ModelFileError):
        fresh(model(hub, data))


@pytest.mark.slow
@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize(
    "fault",
    [
        Fault(ignore_range=True),
        Fault(ignore_range=True, chunked=True),
        Fault(ignore_range=True, after=1),
        Fault(cut_after=700, times=3),
        Fault(cut_after=0, times=1, after=1),
        Fault(drop=True, times=2),
        Fault(chunked=True),
        Fault(chunked=True, cut_after=100, times=2),
        Fault(headers={"ETag": ""}),
        Fault(headers={"ETag": 'W/"weak"'}),
        Fault(pause=0.01, piece=200),
    ],
)
def test_what_a_server_may_do_and_the_header_comes(hub, fault):
    found = model(hub)
    hub.fail("store", fault)
    assert fresh(found) == local(tiny())


def test_a_file_beside_the_store_comes_from_the_hub_itself(hub, monkeypatch):
    monkeypatch.setattr("tests.hub.Repo.in_store", lambda *_: False)
    assert fresh(model(hub)) == local(tiny())
    assert not hub.requests("store")


@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize(
    "said", ["", "bytes 0-1023", "1-1024/N", "0-2047/N", "9-0/N", "0-511/N", "0-99999999/N", "\xb2-\xb3/\xb9"]
)
def test_another_part_than_was_asked_for(hub, said):
    found = model(hub)
    size = str(tiny().stat().st_size)
    said = "bytes " + said.replace("N", size) if "/" in said else said
    hub.fail("store", Fault(headers={"Content-Range": said}))
    assert re.search("different part|which part", refused(HubAnswerError, found).message)


@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize(
    "fault",
    [
        Fault(headers={"Content-Encoding": "br"}),
        Fault(body=b"GGUF" * 1000, chunked=True),
        Fault(status=302, headers={"Location": "/again"}),
        Fault(status=403),
        Fault(status=404),
        Fault(status=204),
    ],
)
def test_an_answer_that_makes_no_sense(hub, fault):
    found = model(hub)
    hub.fail("store", fault)
    with pytest.raises((HubAnswerError, RemoteFileChanged)):
        fresh(found)


def test_more_than_was_asked_for(hub, monkeypatch):
    """An endless body of a server that says no length ends with the first byte too many."""
    monkeypatch.setattr("edgechat.models.hub.remote_headers.FIRST_READ", 1024)
    found = model(hub)
    hub.fail("store", Fault(more=bytes(10 << 20), chunked=True))
    assert "more" in refused(HubAnswerError, found).message
    hub.mend()
    hub.fail("store", Fault(more=bytes(10 << 20)))
    assert fresh(found) == local(tiny()), "what comes after the length that was said is nobody's"


@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize(
    ("place", "fault"),
    [
        ("resolve", Fault(headers={"X-Linked-Size": "5"})),
        ("resolve", Fault(headers={"X-Linked-Etag": f'"{"0" * 64}"'})),
        ("resolve", Fault(headers={"X-Repo-Commit": "0" * 40})),
        ("resolve", Fault(headers={"X-Repo-Commit": "0" * 40}, after=1)),
        ("store", Fault(headers={"Content-Range": "bytes 0-1023/1024"})),
        ("store", Fault(headers={"ETag": '"other"'}, after=1)),
        ("store", Fault(headers={"ETag": ""}, after=1)),
        ("store", Fault(ignore_range=True, body=b"GGUF")),
        ("store", Fault(status=416)),
    ],
)
def test_a_file_that_changed(hub, place, fault):
    found = model(hub)
    hub.fail(place, fault)
    refused(RemoteFileChanged, found)


def test_a_file_that_went(hub):
    found = model(hub)
    hub.repos[REPO].files.clear()
    assert "does not contain this file" in refused(RepoNotFound, found).message


def test_a_gated_model(hub, monkeypatch):
    hub.add(REPO, {FILE: tiny()}, gated="auto")
    found = resolve_remote(HubName(REPO), offline=False)
    hint = refused(AccessDenied, found).hint or ""
    assert f"{hub.url}/{REPO}" in hint
    assert "hf auth login" in hint
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.fail("resolve", Fault(status=403, headers={"X-Error-Code": "GatedRepo"}, times=1))
    assert "log in" not in (refused(AccessDenied, found).hint or "")
    assert fresh(found) == local(tiny())
    assert {one.token for one in hub.requests("store")} == {None}, "the store gets no token"
    assert hub.requests("resolve")[-1].token == f"Bearer {TOKEN}"


def test_a_hole_on_the_hub_is_not_downloaded(hub):
    hub.add(REPO, {FILE: tiny().read_bytes() + bytes(2 << 20)})
    with pytest.raises(ModelFileError, match="has 2 MiB of data after its last tensor") as caught:
        fresh(resolve_remote(HubName(REPO), offline=False))
    assert "on the hub is damaged" in (caught.value.hint or "")


def test_a_rate_limit(hub):
    found = model(hub)
    hub.fail("store", Fault(status=429, headers={"Retry-After": "3"}))
    refused(RateLimited, found)


@pytest.mark.parametrize(
    "fault", [Fault(drop=True), Fault(cut_after=0), Fault(cut_after=0, chunked=True), Fault(status=503)]
)
def test_a_store_that_only_fails(hub, fault):
    found = model(hub)
    hub.fail("store", fault)
    refused(HubUnreachable, found)
    assert len(hub.requests("store")) <= remote_headers.MAX_CUTS + 1


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault(wait=600), Fault(pause=600), Fault(pause=0.05, piece=1)])
def test_a_store_that_stalls_or_drips(hub, fault, monkeypatch):
    monkeypatch.setattr(remote_headers, "TIME_LIMIT", 1.5)
    found = model(hub)
    hub.fail("store", fault)
    refused(HubUnreachable, found)


@pytest.mark.slow
@pytest.mark.usefixtures("small_reads")
def test_a_drip_of_many_answers_is_bounded(hub, monkeypatch):
    """Each answer is quick, and gives a hundred bytes of what was asked for."""
    monkeypatch.setattr(remote_headers, "TIME_LIMIT", 1.5)
    found = model(hub)
    hub.fail("store", Fault(cut_after=0, wait=0.3))
    refused(HubUnreachable, found)


@pytest.mark.slow
@pytest.mark.usefixtures("small_reads")
def test_whatever_servers_do_together(hub):
    """Faults at random, several at once: the header, or one of our errors; never another header."""
    found, expected = model(hub), local(tiny())
    chance, came = random.Random(7), 0
    for _ in range(120):
        hub.mend()
        for _ in range(chance.randint(1, 3)):
            spoilt = Fault(
                times=chance.randint(1, 4), after=chance.randint(0, 3), chunked=chance.random() < 0.3
            )
            spoilt.cut_after = chance.choice([None, None, 0, chance.randint(1, 3000)])
            spoilt.ignore_range, spoilt.drop = chance.random() < 0.3, chance.random() < 0.1
            spoilt.status = chance.choice([None] * 8 + [200, 206, 302, 403, 416, 503])
            spoilt.more = chance.choice([b"", b"", b"GGUF", bytes(5000)])
            spoilt.headers = chance.choice(
                [{}, {}, {"ETag": '"x"'}, {"Content-Length": "77"}, {"Content-Range": ""}]
            )
            hub.fail(chance.choice(["resolve", "store"]), spoilt)
        try:
            assert fresh(found) == expected
            came += 1
        except (HubError, ModelFileError):
            pass
    assert 12 < came < 108


def test_a_header_without_an_end_is_given_up(hub, monkeypatch):
    monkeypatch.setattr("edgechat.models.hub.remote_headers.FIRST_READ", 1024)
    monkeypatch.setattr("edgechat.models.formats.gguf.MAX_HEADER", 4096)
    with pytest.raises(ModelFileError, match="would be larger"):
        fresh(model(hub))
    last = hub.requests("store")[-1].range
    assert last is not None
    assert last[1] <= 4095


def test_a_header_is_read_once(hub):
    found = model(hub)
    first = found.header(found.choices[0])
    asked = len(hub.seen)
    assert found.header(found.choices[0]) == first
    assert len(hub.seen) == asked
    whole = local(tiny())
    assert (first.tensors, first.n_params, first.file_size) == (
        whole.tensors,
        whole.n_params,
        whole.file_size,
    )
    assert (first.architecture, first.vocab_size, first.quant) == ("llama", whole.vocab_size, "F32")
    assert first.chat_template is None


def test_another_commit_is_read_anew(hub):
    found = model(hub)
    found.header(found.choices[0])
    newer = model(hub, tiny("moe"))
    assert newer.listing.commit != found.listing.commit
    assert newer.header(newer.choices[0]).architecture == "qwen3moe"


def test_a_plan_of_a_model_seen_before_needs_no_network(hub):
    found = model(hub)
    header = found.header(found.choices[0])
    hub.stop()
    again = resolve_remote(HubName(REPO), offline=False)
    assert again.unasked is not None
    assert again.header(again.choices[0]) == header


def test_a_damaged_entry_is_read_anew(hub, home):
    found = model(hub)
    header = found.header(found.choices[0])
    (entry,) = (home / "cache/hub/headers").iterdir()
    assert entry.stat().st_size < 8192
    for damage in (b"", b"nonsense", entry.read_bytes()[:-9], pack(read_model(tiny("moe")))):
        entry.write_bytes(damage)
        assert found.header(found.choices[0]) == header


def test_a_cache_that_cannot_be_written_is_no_error(hub, monkeypatch):
    def full(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr("tempfile.mkstemp", full)
    found = model(hub)
    assert found.header(found.choices[0]).architecture == "llama"
