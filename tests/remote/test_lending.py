"""The worker's side alone: what it says, when it ends, and how little of the disk it takes."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest

from edgechat.device.remote.lending import trim
from edgechat.device.remote.messages import MOST_BYTES
from edgechat.native.accelerators import rpc
from tests.rpc_server import skip_without_rpc

COMMAND = [sys.executable, "-P", "-m", "edgechat", "worker", "--memory", "64MiB"]


@pytest.fixture
def worker(tmp_path):
    """`edgechat worker`, as ssh starts it; its first line has been read."""
    skip_without_rpc()
    process = subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    process.first = json.loads(process.stdout.readline())
    yield process
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(BrokenPipeError):  # of what it was not there to read
            pipe.close()


def said(worker, line):
    worker.stdin.write(line + b"\n")
    worker.stdin.flush()
    return json.loads(worker.stdout.readline())


@pytest.mark.slow
def test_it_says_what_it_lends_and_serves_until_its_input_ends(worker):
    offer = worker.first
    assert offer["type"] == "offer"
    (device,) = offer["devices"]
    assert (device["name"], device["total"]) == ("CPU", 64 << 20)
    assert device["speed"]["bandwidth"] > 0
    pong = said(worker, b'{"type": "ping", "number": 7}')
    assert pong["number"] == 7
    assert 0 < pong["free"][0] <= 64 << 20
    rpc._check_connection(f"127.0.0.1:{offer['port']}")
    worker.stdin.close()
    assert worker.wait(20) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", [b"nonsense", b'{"type": "offer"}', b"x" * (MOST_BYTES + 10), b'{"type":"ping","number":"x"}']
)
def test_what_is_no_message_ends_it(worker, line):
    with suppress(BrokenPipeError):  # it may end before it has read the whole line
        worker.stdin.write(line + b"\n")
        worker.stdin.flush()
    assert worker.wait(20) == 0


@pytest.mark.slow
def test_a_port_that_is_taken_is_told(worker):
    port = worker.first["port"]
    done = subprocess.run([*COMMAND, "--port", str(port)], capture_output=True, check=False)
    refusal = json.loads(done.stdout)
    assert (refusal["type"], refusal["is_port"]) == ("refusal", True)
    assert str(port) in refusal["message"]


@pytest.mark.slow
def test_only_this_machine_can_connect(worker):
    port = worker.first["port"]
    others = {address[4][0] for address in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in others - {"127.0.0.1"}:
        with pytest.raises(OSError, match=r"refused|unreachable|timed out"):
            socket.create_connection((address, port), timeout=2)


@pytest.mark.slow
def test_it_ends_with_its_parent(tmp_path):
    """Also where somebody else holds its standard input open."""
    reading, writing = os.pipe()
    code = (
        "import subprocess, sys; p = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE);"
        "p.stdout.readline(); print(p.pid, flush=True); sys.stdin = None;"
        "import time; time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, *COMMAND],
        stdin=reading,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=20)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    os.close(reading)
    os.close(writing)


def test_old_tensors_make_room(tmp_path):
    folder = tmp_path / "tensors"
    folder.mkdir()
    for age in range(5):
        path = folder / f"{age:016x}"
        path.write_bytes(b"x" * 1000)
        os.utime(path, (1000 - age, 1000 - age))
    trim(folder, 2500)
    assert sorted(path.name[-1] for path in folder.iterdir()) == ["0", "1"]
    trim(folder)
    assert len(list(folder.iterdir())) == 2
    trim(tmp_path / "nowhere", 0)
