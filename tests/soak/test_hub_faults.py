"""Downloads from a hub at which anything goes wrong: the right bytes, or a reason, and never for long.

EDGECHAT_SOAK_HUB sets how many are begun. A fault is drawn for each place that answers: cut, reset, silent,
too long, of another length than it says, in another part, altered, an error, sent astray; and the listing
itself may lie. What an earlier one left stays for the next, as in a real cache.
"""

import hashlib
import json
import os
import random
import time
from collections import Counter

import pytest

from edgechat.base.errors import EdgechatError
from edgechat.models.hub.cache import HubStore
from edgechat.models.hub.download import download
from edgechat.models.hub.listing import resolve_remote
from edgechat.models.hub.names import HubName
from tests.hub import Fault
from tests.kit import tiny
from tests.models.downloads import Seen

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.usefixtures("no_waits", "impatient")]

ROUNDS = int(os.environ.get("EDGECHAT_SOAK_HUB", "600"))
REPO = "owner/tiny-GGUF"
MOST_SECONDS = 60.0
"""Eight tries, each of which may be silent for as long as it may."""
PLACES = ("api", "resolve", "store")
ASTRAY = (
    *(
        "http://169.254.169.254/",
        "http://0.0.0.0:1/",
        "ftp://a/",
        "//",
        "http://[::1",
        "https://hub.invalid/",
    ),
    *("http://u:p@127.0.0.1/", "/api/models/other/one", "", "\x7f", "http://224.0.0.1/a"),
)


def draw(rng, sizes):
    """Return what goes wrong with an answer: mostly one thing, and seldom what takes time."""
    fault = Fault(times=rng.choice((1, 1, 2, 5, -1)), after=rng.choice((0, 0, 0, 1, 2)))
    size = rng.choice(sizes)
    for _ in range(rng.choice((1, 1, 1, 2))):
        match rng.randrange(14):
            case 0:
                fault.cut_after = rng.randrange(size)
            case 1:
                fault.cut_after, fault.reset = rng.randrange(size), True
            case 2:
                fault.drop = True
            case 3:
                fault.status = rng.choice(
                    (204, 206, 301, 304, 400, 401, 403, 404, 416, 418, 429, 500, 502, 503)
                )
            case 4:
                fault.headers = {
                    "Content-Length": rng.choice(("0", "1", str(size - 1), str(size + 1), "-1", "x"))
                }
            case 5:
                fault.body = rng.choice((b"", b"<html>Log in</html>", rng.randbytes(size), bytes(size)))
            case 6:
                fault.more = rng.choice((b"x", rng.randbytes(1 << 20), b"0\r\n\r\n"))
            case 7:
                fault.chunked = True
            case 8:
                fault.ignore_range = True
            case 9:
                fault.headers = {
                    "Content-Range": rng.choice(
                        ("", "bytes 0-0/1", f"bytes 0-{size}/{size}", "bytes */5", "x")
                    )
                }
            case 10:
                fault.headers = {"ETag": rng.choice(("", '"x"', f'"{"0" * 64}"', "W/"))}
            case 11:
                fault.headers = {"Location": rng.choice(ASTRAY)}
                fault.status = rng.choice((301, 302, 307, 308))
            case 12:
                name = rng.choice(("X-Linked-Etag", "X-Linked-Size", "X-Repo-Commit", "Content-Encoding"))
                fault.headers = {name: rng.choice(("", "0", '"0"', "gzip", "0" * 40))}
            case _:
                if rng.random() < 0.1:
                    fault.pause, fault.times = 5.0, 1
                fault.piece = rng.choice((1 << 10, 1 << 16))
    return fault


def lie(hub, rng):
    """Let the listing say something that is not so."""
    repo = hub.repos[REPO]
    siblings = [
        {
            "rfilename": name,
            "size": len(data),
            "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
            "lfs": {"sha256": repo.sha256(name), "size": len(data)},
        }
        for name, data in repo.files.items()
    ]
    for _ in range(rng.choice((1, 1, 3))):
        one = rng.choice(siblings)
        match rng.randrange(6):
            case 0:
                sha256 = rng.choice((rng.randbytes(32).hex(), "", "../x", "0" * 64))
                one["lfs"] = {"sha256": sha256, "size": one["size"]}
            case 1:
                one["size"] = rng.choice((0, 1, one["size"] + 1, one["size"] - 1, 2**40, -1))
                one["lfs"] = {"sha256": repo.sha256(rng.choice(list(repo.files))), "size": one["size"]}
            case 2:
                one["rfilename"] = rng.choice(("../../x.gguf", "/etc/x.gguf", "a\x1b[2J.gguf", "x" * 300, ""))
            case 3:
                siblings.append(dict(rng.choice(siblings)))
            case 4:
                one.pop("lfs", None)
            case _:
                one["lfs"] = rng.choice((None, [], {"sha256": 5, "size": "x"}))
    repo.info["siblings"] = siblings


def told(error):
    """Return what kind of error it is; its message must be for people."""
    assert error.message.isprintable(), error.message
    return type(error).__name__


def bring(rng, seen):
    """Ask for a model, its header and its bytes; return what came of it."""
    try:
        remote = resolve_remote(HubName(REPO), offline=False)
        choice = rng.choice(remote.choices)
        if rng.random() < 0.5:
            remote.header(choice)
        done = download(remote.listing, choice.files, "main", seen)
    except EdgechatError as error:
        return told(error)
    for one in done:
        data = HubStore(remote.listing).path(one.file).read_bytes()
        assert len(data) == one.file.size
        assert one.file.sha256 in (None, hashlib.sha256(data).hexdigest())
    return "came"


def sound(cache):
    """Assert that whatever is in its place is what its name says, and lies in the cache."""
    for path in cache.rglob("snapshots/*/*"):
        if path.is_file():
            blob = path.resolve()
            assert cache.resolve() in blob.parents
            data = blob.read_bytes()
            blob_id = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            assert blob.name in (hashlib.sha256(data).hexdigest(), blob_id)


def test_the_right_bytes_or_a_reason(hub, hf_cache, tmp_path):
    rng, outcomes, slowest = random.Random(9), Counter[str](), 0.0
    whole = tiny().read_bytes()
    for number in range(ROUNDS):
        hub.mend()
        # New bytes now and then; else what is here, or was begun, is gone on with.
        if number % 4 == 0:
            hub.repos.pop(REPO, None)
            head, tail = whole[:-4], number.to_bytes(4, "little")
            hub.add(
                REPO, {"a-Q4_0.gguf": head + tail, "b-Q8_0.gguf": tail.join((whole, b"")), "README.md": tail}
            )
        if rng.random() < 0.15:
            lie(hub, rng)
        for place in rng.sample(PLACES, rng.choice((1, 1, 2))):
            hub.fail(place, draw(rng, [len(whole), 1000, len(json.dumps(hub.repos[REPO].info)) + 2]))
        start = time.monotonic()
        outcomes[bring(rng, Seen())] += 1
        slowest = max(slowest, time.monotonic() - start)
        sound(hf_cache)
        hub.repos[REPO].info.pop("siblings", None)
    assert slowest < MOST_SECONDS
    assert min(outcomes["came"], ROUNDS - outcomes["came"]) > ROUNDS / 10
    assert {path.name for path in tmp_path.iterdir()} <= {"home", "hf-hub"}, "nothing lies elsewhere"
    hub.mend()
    for _ in range(20):
        assert bring(rng, Seen()) == "came"
