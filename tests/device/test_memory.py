import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.device.memory import read_memory
from tests.device import trees

MIB = 2**20
GIB = 2**30


def group(limit, current, inactive=0, active=0):
    return {
        "memory.max": f"{limit}\n",
        "memory.current": f"{current}\n",
        "memory.stat": f"anon 1\nshmem 3\ninactive_file {inactive}\nactive_file {active}\n",
    }


def test_a_machine_without_limits(tmp_path):
    root = trees.lay(tmp_path, trees.meminfo(16000, 9000), trees.cgroup2("/a", {"/a": group("max", GIB)}))
    memory = read_memory(root, {})
    assert (memory.total, memory.available, memory.bound) == (16000 * MIB, 9000 * MIB, None)


def test_page_cache_in_a_group_counts_as_free(tmp_path):
    # 7 of 8 GiB are "used", but 6 of them are a cached model file.
    files = {"": group(str(8 * GIB), 7 * GIB, inactive=2 * GIB, active=4 * GIB)}
    memory = read_memory(trees.lay(tmp_path, trees.meminfo(64000, 60000), trees.cgroup2("/", files)), {})
    assert memory.available == 7 * GIB
    assert memory.bound == "the control group /sys/fs/cgroup"


def test_the_tightest_ancestor_binds(tmp_path):
    files = {
        "/user.slice": group(str(4 * GIB), 3 * GIB),
        "/user.slice/app": group("max", 2 * GIB),
        "/user.slice/app/us": group(str(8 * GIB), GIB),
    }
    root = trees.lay(tmp_path, trees.meminfo(64000, 60000), trees.cgroup2("/user.slice/app/us", files))
    memory = read_memory(root, {})
    assert memory.available == GIB
    assert memory.bound == "the control group /sys/fs/cgroup/user.slice"


def test_memory_high_is_a_limit_too(tmp_path):
    files = {"/a": group(str(8 * GIB), GIB) | {"memory.high": f"{3 * GIB}\n"}}
    root = trees.lay(tmp_path, trees.meminfo(64000, 60000), trees.cgroup2("/a", files))
    assert read_memory(root, {}).available == 2 * GIB


@pytest.mark.parametrize(
    ("path", "mount", "folder"),
    [
        # A container that sees its own group as the top of the hierarchy.
        ("/", trees.V2_MOUNT, ""),
        # The same without a namespace: the path is the host's, the mount shows only our part.
        ("/docker/abc", trees.V2_MOUNT.replace(" / ", " /docker/abc "), ""),
        # We were moved out of what the mount shows.
        ("/../other", trees.V2_MOUNT, ""),
        ("/elsewhere", trees.V2_MOUNT.replace(" / ", " /docker/abc "), ""),
        # A mount point with a space.
        ("/", trees.V2_MOUNT.replace("/sys/fs/cgroup", r"/sys/fs/cgroup/my\040groups"), "/my groups"),
    ],
)
def test_namespaced_groups(tmp_path, path, mount, folder):
    tree = trees.cgroup2(path, {folder: group(str(2 * GIB), GIB)}, mount)
    tree |= {f"sys/fs/other/{name}": text for name, text in group("1", 1).items()}  # not a group at all
    assert read_memory(trees.lay(tmp_path, trees.meminfo(64000, 60000), tree), {}).available == GIB


def test_cgroup_v1_counts_the_children(tmp_path):
    tree = {
        "proc/self/cgroup": "9:name=systemd:/\n4:memory:/a/b\n0::/\n",
        "proc/self/mountinfo": "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{5 * GIB}\n",
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory/a/memory.usage_in_bytes": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory/a/memory.stat": (
            f"inactive_file 0\nactive_file 0\ntotal_inactive_file {GIB}\ntotal_active_file {GIB}\n"
        ),
        "sys/fs/cgroup/memory/a/b/tasks": "1\n",
    }
    memory = read_memory(trees.lay(tmp_path, trees.meminfo(64000, 60000), tree), {})
    assert (memory.available, memory.bound) == (3 * GIB, "the control group /sys/fs/cgroup/memory/a")


def test_a_group_beyond_its_limit_leaves_nothing(tmp_path):
    tree = trees.cgroup2("/", {"": group(str(GIB), 2 * GIB)})
    assert read_memory(trees.lay(tmp_path, trees.meminfo(16000, 9000), tree), {}).available == 0


def test_resource_limits(tmp_path):
    status = {"proc/self/status": "Name:\tpython\nVmSize:\t  1048576 kB\nVmData:\t   524288 kB\n"}
    root = trees.lay(tmp_path, trees.meminfo(16000, 9000), status)
    memory = read_memory(root, {"ulimit -v": 4 * GIB, "ulimit -d": 3 * GIB})
    assert (memory.available, memory.bound) == (2560 * MIB, "the limit set by ulimit -d")


def test_without_proc_the_portable_way(tmp_path):
    memory = read_memory(tmp_path, {})
    assert 0 < memory.available <= memory.total


_sizes = st.integers(0, 2**45)


@given(limit=st.none() | _sizes, current=_sizes, inactive=_sizes, active=_sizes)
def test_never_more_than_the_machine_has_nor_less_than_nothing(
    tmp_path_factory, limit, current, inactive, active
):
    tree = trees.cgroup2("/", {"": group("max" if limit is None else str(limit), current, inactive, active)})
    root = trees.lay(tmp_path_factory.mktemp("tree"), trees.meminfo(16000, 9000), tree)
    available = read_memory(root, {}).available
    assert 0 <= available <= 9000 * MIB
    assert limit is None or available <= limit


def test_this_machine():
    memory = read_memory()
    assert 0 < memory.available <= memory.total


def _measured(before, after=""):
    """Return available and bound as a child sees them that runs `before`, then `after` the import."""
    code = (
        f"{before}\nfrom edgechat.device.memory import read_memory\n{after}\n"
        "m = read_memory(); print(m.available, m.bound, sep='\\n')"
    )
    top = Path(__file__).parents[2]
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=top)
    return answer.stdout.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="resource limits are read on Linux")
def test_a_real_resource_limit():
    available, bound = _measured(
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (500 * 2**20,) * 2)"
    )
    assert bound == "the limit set by ulimit -v"
    assert 300 * MIB < int(available) < 500 * MIB


@pytest.mark.slow
def test_a_real_control_group():
    """The page cache of a file that was just read must not lower what is available in a real group."""
    version_2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    top = Path("/sys/fs/cgroup") if version_2 else Path("/sys/fs/cgroup/memory")
    folder = top / f"edgechat-test-{os.getpid()}"
    try:
        folder.mkdir()
        limit = "memory.max" if version_2 else "memory.limit_in_bytes"
        (folder / limit).write_text(str(600 * MIB))
    except OSError as error:
        pytest.skip(f"may not make a control group: {error}")
    try:
        enter = f"import os; open({str(folder / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
        read_much = (
            "import tempfile\nf = tempfile.TemporaryFile(dir='/var/tmp')\n"
            "for _ in range(300): f.write(b'x' * 2**20)\n"
            "f.flush(); os.fsync(f.fileno()); f.seek(0)\nwhile f.read(2**20): pass"
        )
        available, bound = _measured(enter, read_much)
        assert bound == f"the control group {folder}"
        assert 500 * MIB < int(available) < 600 * MIB
    finally:
        folder.rmdir()
