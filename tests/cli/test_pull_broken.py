"""`edgechat pull` where it is stopped, killed, cut off, or not alone."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.pulling import (
    EDGECHAT,
    REPO,
    complaint,
    found,
    no_blob,
    partial,
    sized,
    sound,
    variables,
)
from tests.hub import Fault
from tests.kit import Spec, tiny
from tests.kit.build import write
from tests.kit.shapes import Tensor
from tests.terminal import Terminal, needs_tmux

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured")]


def test_wrong_bytes(hub, pull, hf_cache):
    hub.add(REPO, {"tiny-F32.gguf": tiny()})
    found(pull(REPO, "--dry-run", "--json"))  # the header
    hub.fail("store", Fault(body=bytes(tiny().stat().st_size)))
    assert "SHA-256" in complaint(pull(REPO))
    assert not list(hf_cache.glob("*/blobs/*"))
    assert not list(hf_cache.glob("*/snapshots/*/*"))


def test_a_vision_tower_inside_is_told_before_anything_is_downloaded(hub, pull, hf_cache, tmp_path):
    write(Spec(), tmp_path / "all-F32.gguf", beside=[Tensor("v.blk.0.attn_q.weight", (64, 32), 1.0)])
    hub.add(REPO, {"all-F32.gguf": tmp_path / "all-F32.gguf"})
    told = complaint(pull(REPO))
    assert "all-F32.gguf contains a vision tower (8 KiB) in addition to the text model" in told
    assert not list(hf_cache.glob("*/blobs/*"))


def test_a_changed_file_starts_anew(hub, pull, hf_cache):
    hub.add(REPO, {"tiny-F32.gguf": sized(1_000_000)})
    found(pull(REPO, "--dry-run", "--json"))
    hub.fail("store", Fault(cut_after=500_000, times=1))
    hub.fail("resolve", Fault(status=401, after=1))
    complaint(pull(REPO))
    hub.mend()
    hub.add(REPO, {"tiny-F32.gguf": sized(1_000_001)})
    answer = found(pull(REPO, "--json"))
    assert sound(answer)
    assert (answer["resumed_bytes"], answer["received_bytes"]) == (0, 1_000_001)


@pytest.mark.parametrize("n_points", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_killed_at_many_points(hub, pull, hf_cache, n_points):
    size, random_ = 400_000 * n_points, random.Random(20)
    repo = hub.add(REPO, {"tiny-F32.gguf": sized(size)})
    found(pull(REPO, "--dry-run", "--json"))
    hub.fail("store", Fault(pause=0.004, piece=1 << 14))
    step = size // (n_points + 1)
    points = [n * step + random_.randrange(step) for n in range(n_points)]
    starts = []
    for point in points:
        child = subprocess.Popen(
            [*EDGECHAT, "pull", REPO], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while partial(hf_cache) < point:
            assert child.poll() is None
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert no_blob(hf_cache)
        assert not list(hf_cache.glob("*/snapshots/*/*"))
        starts.append(partial(hf_cache))
    hub.mend()
    answer = found(pull(REPO, "--json"))
    assert sound(answer)
    assert answer["files"][0]["sha256"] == repo.sha256("tiny-F32.gguf")
    assert answer["resumed_bytes"] == starts[-1]
    asked = [one.range[0] for one in hub.requests("store") if one.range and one.range[0]]
    assert asked[-1] == starts[-1]
    assert set(asked) <= set(starts), "everything that was on the disk is kept"
    assert len(set(asked)) > n_points / 2
    assert not list(hf_cache.glob("*/blobs/*.incomplete"))


def test_two_at_once(hub, hf_cache):
    size = 2_000_000
    hub.add(REPO, {"tiny-F32.gguf": sized(size)})
    hub.fail("store", Fault(pause=0.01, piece=1 << 14))
    both = [
        subprocess.Popen(
            [*EDGECHAT, "pull", REPO, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    ends = [child.communicate(timeout=60) for child in both]
    assert [child.returncode for child in both] == [0, 0], ends
    answers = [json.loads(out) for out, _ in ends]
    assert sorted(one["received_bytes"] for one in answers) == [0, size]
    assert all(map(sound, answers))
    assert [("waiting for it" in err) for _, err in ends].count(True) == 1


def test_stopped_by_a_person(hub, hf_cache):
    hub.add(REPO, {"tiny-F32.gguf": sized(8_000_000)})
    hub.fail("store", Fault(pause=0.01, piece=1 << 14))
    child = subprocess.Popen([*EDGECHAT, "pull", REPO], stderr=subprocess.PIPE, text=True)
    while partial(hf_cache) < 100_000:
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=10)
    assert child.returncode == 130
    assert "run the same command again" in err
    assert partial(hf_cache) >= 100_000


def test_too_small_a_disk(hub, pull, small_disk, monkeypatch):
    hub.add(REPO, {"tiny-F32.gguf": sized(3_000_000)})
    monkeypatch.setenv("HF_HUB_CACHE", str(small_disk / "cache"))
    said = complaint(pull(REPO))
    assert "The download needs 3 MiB" in said
    assert "2 MiB free" in said


OFFLINE = """
import sys

def watch(event, args):
    if event.startswith("socket."):
        print("opened", event, args, flush=True)

sys.addaudithook(watch)
from edgechat.__main__ import main
sys.argv = ["edgechat", "pull", *sys.argv[1:]]
sys.exit(main())
"""


@pytest.mark.parametrize("by", ["EDGECHAT_OFFLINE", "HF_HUB_OFFLINE", "option", "settings"])
def test_offline_opens_no_socket(hub, pull, by, home, monkeypatch):
    hub.add(REPO, {"tiny-F32.gguf": tiny(), "tiny-Q8_0.gguf": tiny()})
    found(pull(REPO, "--quant", "F32", "--json"))
    words = ["--offline"] if by == "option" else []
    if by == "settings":
        (home / "config").mkdir(exist_ok=True)
        (home / "config/settings.toml").write_text("offline = true\n")
    elif by != "option":
        monkeypatch.setenv(by, "1")
    for name, said, code in (
        (REPO, "is already on this machine", 0),
        (f"{REPO}:Q8_0", "offline", 1),
        ("owner/other", "offline", 1),
        ("qwen3-8b", "offline", 1),
    ):
        done = subprocess.run(
            [sys.executable, "-c", OFFLINE, name, *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done
        assert said in done.stdout + done.stderr
        assert "opened" not in done.stdout, done


@needs_tmux
def test_one_line_on_a_terminal(hub, hf_cache, tmp_path, home):
    hub.add(REPO, {"tiny-F32.gguf": sized(3_000_000)})
    hub.fail("store", Fault(pause=0.01, piece=1 << 14))
    with Terminal(tmp_path / "terminal", home=home) as terminal:
        terminal.run([*EDGECHAT, "pull", REPO], variables=variables())
        terminal.until("left, tiny-F32.gguf")
        terminal.until("left with 0", seconds=30)
        assert "of 3 MiB" not in terminal.screen, "the line is gone"
        assert "Chat with it" in terminal.screen
