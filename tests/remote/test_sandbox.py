"""What a worker's process may still do, and what it may not: tried in a process that is confined."""

import json
import socket
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such a sandbox"),
]

_TRIED = """
import json, os, signal, socket, subprocess, sys
from pathlib import Path
from edgechat.device.remote import lending

home, cache, port, other = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
by = lending.confine(cache, port)

def works(action):
    try:
        action()
    except OSError:
        return False
    return True

done = {
    "by": by,
    "no new privileges": "NoNewPrivs:\\t1" in Path("/proc/self/status").read_text(),
    "reads a secret": works((home / "secret").read_text),
    "reads passwords": works(Path("/etc/passwd").read_text),
    "lists home": works(lambda: os.listdir(home)),
    "writes home": works(lambda: (home / "new").write_text("x")),
    "connects": works(lambda: socket.create_connection(("127.0.0.1", other), timeout=5)),
    "listens elsewhere": works(lambda: socket.create_server(("127.0.0.1", 0))),
    "kills its parent": works(lambda: os.kill(os.getppid(), 0)),
    "runs a shell that reads a secret": not subprocess.run(
        ["/bin/cat", str(home / "secret")], capture_output=True).returncode,
    "listens": works(lambda: socket.create_server(("127.0.0.1", port))),
    "writes its cache": works(lambda: (cache / "tensor").write_text("x")),
    "reads its cache": works((cache / "tensor").read_text),
    "deletes from its cache": works((cache / "tensor").unlink),
    "reads its code": works(Path(lending.__file__).read_text),
    "reads the memory": works(Path("/proc/meminfo").read_text),
}
print(json.dumps(done))
"""


def test_what_a_confined_process_can_do(tmp_path):
    home, cache = tmp_path / "someone", tmp_path / "tensors"
    for folder in (home, cache):
        folder.mkdir()
    (home / "secret").write_text("the key")
    with socket.create_server(("127.0.0.1", 0)) as other, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        words = [str(home), str(cache), str(port), str(other.getsockname()[1])]
        done = subprocess.run(
            [sys.executable, "-c", _TRIED, *words], capture_output=True, text=True, check=True
        )
    could = json.loads(done.stdout)
    by = could.pop("by")
    assert could.pop("no new privileges")
    if "landlock" not in by:
        pytest.skip("this kernel has no landlock")
    version = int(by.split("landlock ")[1].split(",")[0])
    forbidden = {
        "reads a secret",
        "reads passwords",
        "lists home",
        "writes home",
        "runs a shell that reads a secret",
    }
    forbidden |= {"connects", "listens elsewhere"} if version >= 4 else set()
    forbidden |= {"kills its parent"} if version >= 6 else set()
    allowed = {"listens", "writes its cache", "reads its cache", "deletes from its cache"}
    allowed |= {"reads its code", "reads the memory"}
    assert {name for name in could if could[name] and name in forbidden} == set()
    assert {name for name in allowed if not could[name]} == set()
