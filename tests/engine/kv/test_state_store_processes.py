"""Several processes with one folder of states, and processes that are killed while they write."""

import os
import random
import subprocess
import sys
import time

import numpy as np
import pytest

from edgechat.engine.kv.state_files import folder, prune
from edgechat.engine.kv.state_store import KVStateStore

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="it forks")]

KILLS = int(os.environ.get("EDGECHAT_SOAK_KILLS", "150"))
CHATS = [f"{i:08}" for i in range(4)]

# Of each line it reads, it makes a process that saves without end until it is killed so many seconds later.
_KILLER = """
import os, signal, sys, time
import numpy as np
from edgechat.engine.kv.state_store import KVStateStore
from tests.engine.kv.test_state_store_processes import CHATS, state_of
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        states, n = KVStateStore(1 << 30, b"m"), os.getpid()
        while True:
            n += 1
            states.save(CHATS[n % 4], range(n % 999), state_of(n % 999)).result()
    time.sleep(float(line))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    print(flush=True)
"""

_WRITER = """
import sys, time
from edgechat.engine.kv.state_store import KVStateStore
from tests.engine.kv.test_state_store_processes import CHATS, state_of
states, n, end = KVStateStore(int(sys.argv[1]), b"m"), int(sys.argv[2]), time.monotonic() + 2
while time.monotonic() < end:
    n += 1
    assert states.save(CHATS[n % 4], range(n % 999), state_of(n % 999)).result()
    states.load(CHATS[(n + 1) % 4]).result()
    if n % 10 == 0:
        states.forget(CHATS[n % 3])
states.close()
"""


def state_of(tokens):
    """Return a state that belongs to so many tokens and to no other number."""
    return np.full(100_000 + 200 * tokens, tokens % 251, np.uint8)


def check(states):
    """Load every chat, return how many there were; each is whole."""
    n = 0
    for chat in CHATS:
        found = states.load(chat).result()
        if found is not None:
            n += 1
            assert found.tokens == list(range(len(found.tokens)))
            assert np.array_equal(found.state, state_of(len(found.tokens)))
    return n


def drafts():
    return list(folder().glob("*.part"))


def test_writers_killed_at_random_moments(capfd, caplog, opened):
    chance, left = random.Random(1), 0
    states = opened(KVStateStore(1 << 30, b"m"))
    with subprocess.Popen(
        [sys.executable, "-c", _KILLER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as killer:
        assert killer.stdin is not None
        assert killer.stdout is not None
        for number in range(KILLS):
            # Later and later: on a busy machine the first ones die before they write.
            killer.stdin.write(f"{chance.uniform(0.0, 0.04 * (1 + number / 75))}\n")
            killer.stdin.flush()
            assert killer.stdout.readline() == "\n"
            left = max(left, len(drafts()))
            there = len(list(folder().glob("*.state"))) if folder().exists() else 0
            assert check(states) == there
        killer.stdin.close()
    assert left, "no writer was killed while it wrote"
    prune(lambda chat: True)
    assert not drafts()
    assert check(states) == len(list(folder().iterdir())) == 4
    assert capfd.readouterr().err == caplog.text == ""


def test_several_processes_save_load_forget_and_evict_in_one_folder(opened):
    limit = 500_000  # about three of four
    states = opened(KVStateStore(limit, b"m"))
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(limit), str(n)], stderr=subprocess.PIPE, text=True
        )
        for n in (0, 500, 17)
    ]
    loaded = 0
    while any(writer.poll() is None for writer in writers):
        loaded += check(states)
        prune(lambda chat: True)
        time.sleep(0.001)
    for writer in writers:
        err = writer.communicate()[1]
        assert writer.returncode == 0, err
        assert err == ""
    assert loaded
    assert not drafts()
