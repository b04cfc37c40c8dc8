"""States of chats on disk: complete or missing, within limits, and never used if damaged."""

import errno
import os
import stat
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref
import zlib
from concurrent.futures import CancelledError
from contextlib import ExitStack, closing
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.engine.kv import state_files, state_store
from edgechat.engine.kv.state_files import Cut, folder, forget, prune
from edgechat.engine.kv.state_store import FoundState, KVStateStore, worth_saving

A, B, C, D = "a" * 32, "b" * 32, "c" * 8, "d" * 64
TOKENS = [1, 0, 2**32 - 1, 42]
STATE = np.arange(40, dtype=np.uint8)
posix = pytest.mark.skipif(os.name != "posix", reason="a matter of POSIX")


def made(size, value=7):
    return np.full(size, value, np.uint8)


def file_of(chat):
    return folder() / f"{chat}.state"


def there():
    return set(os.listdir(folder())) if folder().exists() else set()


def found_for(kept, tokens):
    """Return the chat, the tokens and the size of the state that would be read whole for a prompt."""
    found = kept.find(tokens, whole=True)
    return None if found is None else (found.chat, found.tokens, found.size)


@pytest.fixture
def store():
    """Return a function that opens a store."""
    with ExitStack() as stack:
        yield lambda *args: stack.enter_context(closing(KVStateStore(*args)))


@pytest.fixture
def kept(store):
    return store(1 << 20, b"a model")


class Gate:
    """A fingerprint that keeps the thread waiting until the gate opens."""

    def __init__(self):
        self.open = threading.Event()

    def __call__(self):
        assert self.open.wait(30)
        return b"a model"


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open.set()


# Round trip.


@pytest.mark.parametrize(
    ("tokens", "size"), [(TOKENS, 40), ([], 0), (range(5000), 0), ([], 1), (range(70_000), (3 << 20) + 1)]
)
def test_what_is_saved_is_loaded(store, tokens, size):
    state = np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8)
    kept, again = store(1 << 30, b"a model"), store(1 << 30, lambda: b"a model")
    assert kept.save(A, tokens, state.copy()).result()
    found = again.load(A).result()
    assert found.tokens == list(tokens)
    assert np.array_equal(found.state, state)
    assert found_for(again, tokens) == ((A, len(tokens), size) if tokens else None)


def test_tokens_may_change_once_save_was_called(store, gate):
    kept, tokens = store(None, gate), [1, 2, 3]
    done = kept.save(A, tokens, STATE[::2])  # an array in pieces, too
    tokens.append(4)
    gate.open.set()
    assert done.result()
    found = kept.load(A).result()
    assert found.tokens == [1, 2, 3]
    assert np.array_equal(found.state, STATE[::2])


def test_what_was_never_saved_is_nothing_to_talk_about(kept, caplog):
    assert kept.load(A).result() is None
    assert found_for(kept, TOKENS) is None
    kept.forget(A)
    forget(A)
    assert prune(lambda chat: False) == 0
    assert not folder().exists()
    assert caplog.text == ""


@posix
def test_nobody_else_may_look(kept):
    folder().mkdir(mode=0o755)
    before = os.umask(0)
    try:
        assert kept.save(A, TOKENS, STATE).result()
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder().stat().st_mode) == 0o700
    assert stat.S_IMODE(file_of(A).stat().st_mode) == 0o600


BAD_IDS = [
    "",
    "a" * 7,
    "a" * 65,
    "A" * 32,
    "../" + "a" * 32,
    "a" * 32 + "\n",
    "aaaaaaaa/b",
    "/etc/passwd",
    "ａ" * 8,
]


@pytest.mark.parametrize("chat", BAD_IDS)
def test_no_path_comes_from_outside(kept, chat):
    for call in (kept.load, kept.forget, forget):
        with pytest.raises(ValueError, match="not a chat id"):
            call(chat)
    with pytest.raises(ValueError, match="not a chat id"):
        kept.save(chat, TOKENS, STATE)


# What is wrong with a file.


def spoil(raw):
    folder().mkdir(exist_ok=True)
    file_of(A).write_bytes(raw)


def saved_bytes(state_store):
    assert state_store.save(A, TOKENS, STATE).result()
    return file_of(A).read_bytes()


@pytest.mark.parametrize("one", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_every_bit_counts(kept, one):
    """Here one of each byte, each time another one; in the soak all of them."""
    raw = saved_bytes(kept)
    for at in range(len(raw)):
        for bit in [at % 8] if one else range(8):
            spoil(raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :])
            assert kept.load(A).result() is None, (at, bit)
            # What may be another version's is left; all else is of no use to anybody.
            assert file_of(A).exists() == (8 <= at < 12)


def test_every_byte_counts(kept, caplog):
    raw = saved_bytes(kept)
    cut = [raw[:length] for length in range(len(raw))]
    for spoiled in [*cut, raw + b"\0", raw + raw, b"\0" * len(raw), os.urandom(len(raw))]:
        spoil(spoiled)
        assert kept.load(A).result() is None
        assert not file_of(A).exists()
        assert len(caplog.messages) == 1
        assert A in caplog.messages[0]
        caplog.clear()


@pytest.mark.slow
@given(st.data())
def test_whatever_happens_to_a_file_no_wrong_state_comes_of_it(data):
    kept = KVStateStore(1 << 20, b"a model")
    raw = saved_bytes(kept)
    start = data.draw(st.integers(0, len(raw)))
    stop = data.draw(st.integers(start, len(raw)))
    spoiled = raw[:start] + data.draw(st.binary(max_size=64)) + raw[stop:]
    spoil(spoiled)
    head, found = kept.find(TOKENS, whole=False), kept.load(A).result()
    if spoiled == raw:
        assert found is not None
    else:
        assert found is None
    assert head is None or (head.chat, head.tokens, head.size) == (A, len(TOKENS), len(STATE))
    kept.close()


def head_of(tokens, size, key=b"a model"):
    head = struct.pack("<8sI32sQQQQ", b"edgestat", 2, state_files.key_of(key), tokens, size, 0, 0)
    return head + struct.pack("<I", zlib.crc32(head))


@pytest.mark.parametrize(
    ("tokens", "size", "more"),
    [
        (2**60, 0, 100),
        (0, 2**60, 100),
        (2**64 - 1, 2**64 - 1, 100),
        (2**28, 2**28, 100),
        pytest.param(0, 1 << 36, (1 << 36) + 4, id="more than may be kept, and full of holes"),
    ],
)
def test_nothing_is_allocated_for_what_cannot_be(kept, caplog, tokens, size, more):
    head = head_of(tokens, size)
    spoil(head)
    os.truncate(file_of(A), len(head) + more)
    tracemalloc.start()
    try:
        assert kept.load(A).result() is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert file_of(A).exists() == ("the limit is" in caplog.text) == (more > 100)
    assert found_for(kept, [0]) is None


def test_a_file_of_another_model_is_left_for_it(store, kept, caplog):
    raw = saved_bytes(kept)
    other = store(1 << 20, b"another model")
    assert other.load(A).result() is None
    assert found_for(other, TOKENS) is None
    assert file_of(A).read_bytes() == raw
    assert "another model" in caplog.text
    assert other.save(A, [9], STATE[:3]).result()
    assert found_for(other, [9]) == (A, 1, 3)
    assert found_for(kept, [9]) is None


@posix
def test_what_is_no_plain_file_is_not_touched(kept, tmp_path, caplog):
    saved_bytes(kept)
    outside = tmp_path / "outside"
    file_of(A).rename(outside)
    file_of(A).symlink_to(outside)
    file_of(B).mkdir()
    os.mkfifo(file_of(C))
    for chat in (A, B, C):
        assert kept.load(chat).result() is None
        assert found_for(kept, TOKENS) is None
        assert len(caplog.messages) == 1
        caplog.clear()
        assert os.path.lexists(file_of(chat))
    assert not kept.save(B, TOKENS, STATE).result()
    assert kept.save(A, [1], STATE[:1]).result()  # in the place of the link, not where it leads
    assert not file_of(A).is_symlink()
    assert len(outside.read_bytes()) > file_of(A).stat().st_size
    assert not [name for name in there() if name.endswith(".part")]


def test_a_sound_file_that_another_process_puts_there_meanwhile_stays(kept, monkeypatch):
    raw = saved_bytes(kept)
    spoil(raw[:-1] + b"\0\0")
    read = state_files.read

    def late(*args, **kwargs):
        (folder() / "new").write_bytes(raw)
        os.replace(folder() / "new", file_of(A))
        return read(*args, **kwargs)

    monkeypatch.setattr(state_files, "read", late)
    assert kept.load(A).result() is None
    assert file_of(A).read_bytes() == raw


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "Permission denied"), MemoryError()])
def test_what_cannot_be_read_is_left(kept, monkeypatch, caplog, error):
    saved_bytes(kept)

    def fails(*args, **kwargs):
        raise error

    monkeypatch.setattr(state_files, "read", fails)
    assert kept.load(A).result() is None
    assert file_of(A).exists()
    assert len(caplog.messages) == 1


# How much is kept.

ONE = state_files.StateHeader(0, 1000).file_size


def test_what_was_not_used_for_longest_goes_first(store):
    kept = store(3 * ONE, b"a model")
    for i, chat in enumerate((A, B, C)):
        assert kept.save(chat, [], made(1000)).result()
        os.utime(file_of(chat), (1000 + i, 1000 + i))
    assert kept.load(A).result() is not None
    assert file_of(A).stat().st_mtime > 2000
    assert kept.save(D, [], made(1000)).result()
    assert there() == {f"{chat}.state" for chat in (A, C, D)}
    assert kept.save(D, [], made(1000)).result()  # in place of itself: nobody must go
    assert len(there()) == 3


def test_what_is_larger_than_the_limit_is_not_written_and_what_was_written_last_stays(store):
    kept = store(ONE, b"a model")
    assert kept.save(A, [], made(1000)).result()
    assert not kept.save(A, [], made(1001)).result()
    assert not kept.save(B, [1], made(1000)).result()
    assert there() == {f"{A}.state"}
    os.utime(file_of(A), (2**33, 2**33))  # whatever the clock says
    assert kept.save(B, [], made(1000)).result()
    assert there() == {f"{B}.state"}


def test_no_limit_is_a_tenth_of_what_is_free(store, monkeypatch):
    kept = store(None, b"a model")
    free = 10 * ONE + 9
    monkeypatch.setattr(state_store.shutil, "disk_usage", lambda path: type("Usage", (), {"free": free}))
    assert kept.save(A, [], made(1000)).result()
    assert not kept.save(B, [], made(1001)).result()
    free -= 10
    assert not kept.save(C, [], made(1000)).result()
    assert there() == set()  # the disk is short: what was kept makes room


def test_zero_keeps_and_reads_nothing(store, kept, caplog):
    saved_bytes(kept)
    none = store(0, b"a model")
    assert none.load(A).result() is None
    assert found_for(none, TOKENS) is None
    assert not none.save(B, TOKENS, STATE).result()
    assert there() == set()
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("size", "tokens", "seconds_per_token", "worth"),
    [
        (400_000_000, 100, 0.02, True),
        (400_000_000, 100, 0.005, False),
        (1, 0, 1.0, False),
        (8, 1, 0.0, False),
    ],
)
def test_what_is_worth_saving(size, tokens, seconds_per_token, worth):
    assert worth_saving(size, tokens, seconds_per_token=seconds_per_token) == worth
    assert not worth_saving(size, tokens, seconds_per_token=seconds_per_token, bandwidth=1e-3)


def test_the_bandwidth_is_learned(kept, monkeypatch):
    assert kept.bandwidth == pytest.approx(400e6)
    saved_bytes(kept)
    clock = iter([0.0, 1.0])
    own = SimpleNamespace(perf_counter=lambda: next(clock), monotonic=state_store.time.monotonic)
    monkeypatch.setattr(state_store, "time", own)  # others read the real clock, pytest among them
    assert kept.load(A).result() is not None
    assert kept.bandwidth == pytest.approx((64e6 + 40) / 1.16)


# What comes in between.


def test_of_two_quick_saves_the_last_wins(store, gate):
    kept = store(None, gate)
    first = made(1 << 20)
    gone = weakref.ref(first)
    done = [kept.save(A, [1], first)]
    del first
    done += [kept.save(B, [5], made(5)), kept.save(A, [1, 2], made(2))]
    assert gone() is None  # its memory is free before the disk was even asked
    assert found_for(kept, [1, 2, 3]) == (A, 2, 2)
    gate.open.set()
    assert [one.result() for one in done] == [False, True, True]
    assert kept.load(A).result().tokens == [1, 2]


def test_a_chat_that_is_forgotten_does_not_come_back(store, gate):
    kept = store(None, gate)
    forgotten, other = kept.save(A, TOKENS, STATE), kept.save(B, TOKENS, STATE)
    kept.forget(A)
    assert found_for(kept, TOKENS) == (B, 4, 40)
    gate.open.set()
    assert not forgotten.result()
    assert other.result()
    assert kept.load(A).result() is None
    assert kept.save(A, [1], STATE).result()
    assert found_for(kept, [1]) == (A, 1, 40)
    kept.forget(A)
    assert there() == {f"{B}.state"}


def test_nor_where_it_is_being_written(kept, monkeypatch):
    began, go_on, fsync = threading.Event(), threading.Event(), os.fsync

    def slow(fd):
        fsync(fd)
        began.set()
        assert go_on.wait(30)

    monkeypatch.setattr(state_files.os, "fsync", slow)
    done = kept.save(A, TOKENS, STATE)
    assert began.wait(30)
    assert found_for(kept, TOKENS) == (A, 4, 40)
    assert [name for name in there() if name.endswith(".part")]
    assert prune(lambda chat: True) == 0  # it belongs to a living process
    kept.forget(A)
    assert found_for(kept, TOKENS) is None
    go_on.set()
    assert not done.result()
    assert there() == set()


def test_a_save_that_is_cancelled_frees_its_memory(store, gate):
    kept, state = store(None, gate), made(100)
    gone = weakref.ref(state)
    done = kept.save(A, [], state)
    del state
    assert done.cancel()
    assert gone() is None
    gate.open.set()
    with pytest.raises(CancelledError):
        done.result()
    assert kept.load(A).result() is None


def test_close_waits_for_what_was_asked_for():
    kept = KVStateStore(None, lambda: time.sleep(0.1) or b"a model")
    done = [kept.save(chat, TOKENS, STATE) for chat in (A, B, C)]
    kept.close()
    assert [one.done() and one.result() for one in done] == [True] * 3
    kept.close()
    assert not kept.save(D, TOKENS, STATE).result()
    assert kept.load(A).result() is None
    assert len(there()) == 3


def test_close_does_not_wait_forever(gate):
    kept, state = KVStateStore(None, gate), made(100)
    gone = weakref.ref(state)
    saving, loading = kept.save(A, [], state), kept.load(A)
    del state
    kept.close(0.05)
    assert gone() is None
    gate.open.set()
    assert not saving.result()
    assert loading.result() is None
    assert there() == set()


@pytest.mark.parametrize("step", ["_drain", "_fill"])
def test_close_stops_what_is_under_way(step, monkeypatch):
    kept, steps = KVStateStore(None, b"a model"), 0
    began, go_on, real = threading.Event(), threading.Event(), getattr(state_files, step)

    def slow(*args):
        nonlocal steps
        steps += 1
        if steps == 2:
            began.set()
            assert go_on.wait(30)
        real(*args)

    if step == "_fill":
        assert kept.save(A, [], made(8 << 20)).result()
    before = there()
    monkeypatch.setattr(state_files, step, slow)
    done = kept.load(A) if step == "_fill" else kept.save(A, [], made(8 << 20))
    assert began.wait(30)
    kept.close(0)
    go_on.set()
    assert not done.result()
    assert steps == 2
    assert there() == before


def test_a_load_takes_no_more_memory_than_the_state(store):
    kept = store(None, b"a model")
    assert kept.save(A, [], made(16 << 20)).result()
    tracemalloc.start()
    try:
        assert kept.load(A).result() is not None
        assert 16 << 20 <= tracemalloc.get_traced_memory()[1] < 17 << 20
        tracemalloc.reset_peak()
        before, state = tracemalloc.get_traced_memory()[0], made(16 << 20)
        assert kept.save(A, [], state).result()
        assert tracemalloc.get_traced_memory()[1] - before < 17 << 20
    finally:
        tracemalloc.stop()


# Disks and folders that do not do as they should.


@pytest.fixture
def tiny_disk(small_disk, monkeypatch):
    monkeypatch.setenv("EDGECHAT_HOME", str(small_disk / "home"))
    return small_disk


def test_a_full_disk_keeps_what_it_has(store, tiny_disk, caplog):
    kept = store(1 << 30, b"a model")
    assert kept.save(A, TOKENS, made(1 << 20)).result()
    assert not kept.save(B, TOKENS, made(1 << 20)).result()
    assert not kept.save(A, TOKENS, made(3 << 20)).result()
    lines = caplog.messages
    assert len(lines) == 2
    assert all("No space left" in line for line in lines)
    assert there() == {f"{A}.state"}
    assert kept.load(A).result() is not None


def test_a_disk_that_may_only_be_read(store, tiny_disk, caplog):
    kept = store(1 << 20, b"a model")
    assert kept.save(A, TOKENS, STATE).result()
    subprocess.run(["mount", "-o", "remount,ro", tiny_disk], check=True)
    assert not kept.save(A, [1], STATE).result()
    kept.forget(A)
    assert len(caplog.messages) == 2
    assert kept.load(A).result().tokens == TOKENS


def test_a_folder_that_vanishes_is_made_again(kept):
    saved_bytes(kept)
    forget(A)
    folder().rmdir()
    saved_bytes(kept)
    assert kept.load(A).result() is not None


def test_a_folder_that_is_none(kept, home, caplog):
    home.mkdir()
    (home / "cache").write_text("")
    assert not kept.save(A, TOKENS, STATE).result()
    assert kept.load(A).result() is None
    assert found_for(kept, TOKENS) is None
    kept.forget(A)
    assert len(caplog.messages) == 3


def test_a_model_that_is_gone(store, caplog):
    def fails():
        raise FileNotFoundError(2, "no such model")

    kept = store(None, fails)
    assert not kept.save(A, TOKENS, STATE).result()
    assert kept.load(A).result() is None
    assert found_for(kept, TOKENS) is None
    assert "no such model" in caplog.text


def test_a_log_on_a_full_disk(kept, monkeypatch):
    class Full:
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    spoil(b"nonsense")
    monkeypatch.setattr(sys, "stderr", Full())
    assert kept.load(A).result() is None


# What front ends do without an engine.


def test_forget_and_prune_take_only_what_is_theirs(kept):
    dead, alive = os.getpid(), os.getpid()
    for chat in (A, B, C):
        assert kept.save(chat, TOKENS, STATE).result()
    started = round(state_store.state_files.this_process().started * 1000)
    names = {
        "left": f"{A}.{dead}-{started - 60_000}-0.part",
        "left by a number too large": f"{B}.9999999999-1-0.part",
        "being written": f"{B}.{alive}-{started}-99.part",
        "not ours": "notes.txt",
        "nor this": f"{'A' * 32}.state",
    }
    for name in names.values():
        (folder() / name).write_text("")
    forget(A)
    assert names["left"] not in there()
    assert prune(lambda chat: chat == B) == 2
    rest = {names["being written"], names["not ours"], names["nor this"]}
    assert there() == {f"{B}.state"} | rest
    assert prune(lambda chat: False) == 1
    assert there() == rest


def test_a_save_clears_what_dead_processes_left(kept):
    folder().mkdir()
    (folder() / f"{B}.{os.getpid()}-1-0.part").write_text("")
    saved_bytes(kept)
    assert there() == {f"{A}.state"}


def test_front_ends_need_no_numpy(home):
    program = (
        "import sys; from edgechat.engine.kv.state_files import forget, prune, folder;"
        "forget('a' * 32); prune(lambda chat: False); folder();"
        "sys.exit('numpy' in sys.modules or 'llama_cpp' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# Which state a prompt continues from.


def test_the_state_with_the_longest_common_beginning_is_found(kept):
    for chat, tokens in {A: [1, 2, 3, 4], B: [1, 2, 9, 9, 9, 9], C: [7, 1, 2, 3, 4]}.items():
        assert kept.save(chat, tokens, made(len(tokens))).result()
    assert kept.find([1, 2, 3, 5], whole=False) == FoundState(A, 3, 4, 4)
    assert kept.find([1, 2, 9], whole=False) == FoundState(B, 3, 6, 6)
    assert kept.find([1, 2], whole=False) == FoundState(A, 2, 4, 4)  # of equal ones the smaller
    assert kept.find([8, 1, 2], whole=False) is None
    assert kept.find([], whole=False) is None


def test_a_state_that_cannot_be_cut_is_found_only_whole(kept):
    assert kept.save(A, [1, 2, 3, 4], STATE).result()
    assert kept.save(B, [1, 2], STATE).result()
    assert kept.find([1, 2, 3, 5], whole=True) == FoundState(B, 2, 2, 40)
    assert kept.find([1, 2, 3, 4], whole=True) == FoundState(A, 4, 4, 40)


def test_states_of_other_processes_are_found_and_replaced_ones_not(store, kept):
    assert kept.find(TOKENS, whole=False) is None
    other = store(1 << 20, b"a model")
    assert other.save(A, TOKENS, STATE).result()
    assert kept.find(TOKENS, whole=False) == FoundState(A, 4, 4, 40)
    assert other.save(A, [5, 6], STATE[:7]).result()
    assert kept.find(TOKENS, whole=False) is None
    assert kept.find([5, 6, 7], whole=False) == FoundState(A, 2, 2, 7)
    other.forget(A)
    assert kept.find([5, 6, 7], whole=False) is None


def test_tokens_are_read_once(kept, monkeypatch):
    assert kept.save(A, TOKENS, STATE).result()
    assert kept.find(TOKENS, whole=False) is not None
    monkeypatch.setattr(state_store.state_files, "read_tokens", None)
    assert kept.find(TOKENS[:2], whole=False) == FoundState(A, 2, 4, 40)


def test_states_of_programs_leave_after_a_month(kept):
    for chat in (A, C, D):
        assert kept.save(chat, TOKENS, STATE).result()
    day = 86_400
    for chat, days in {A: 40, C: 0, D: 29}.items():
        os.utime(file_of(chat), (time.time(), time.time() - days * day))
    assert prune(lambda chat: chat == A) == 1  # of C, whose chat is gone
    assert there() == {f"{A}.state", f"{D}.state"}
    os.utime(file_of(D), (time.time(), time.time() - 31 * day))
    assert prune(lambda chat: chat == A) == 1
    assert there() == {f"{A}.state"}


# Places to go back to.


def test_a_checkpoint_is_kept_with_its_state(kept):
    assert kept.save(A, [1, 2, 3, 4], STATE, Cut(2, STATE[:7])).result()
    found = kept.load(A).result()
    assert (found.cut.length, found.cut.state.tolist()) == (2, STATE[:7].tolist())
    assert np.array_equal(found.state, STATE)
    assert kept.find([1, 2, 3, 5], whole=True) == FoundState(A, 2, 4, 40)
    assert kept.find([1, 5], whole=True) is None
    assert kept.find([1, 2, 3, 5], whole=False) == FoundState(A, 3, 4, 40)


@pytest.mark.parametrize(("length", "size"), [(5, 7), (0, 7)])
def test_a_checkpoint_of_other_tokens_is_refused(kept, length, size):
    head = struct.pack("<8sI32sQQQQ", b"edgestat", 2, state_files.key_of(b"a model"), 4, 40, length, size)
    spoil(head + struct.pack("<I", zlib.crc32(head)) + bytes(16 + 40 + size + 4))
    assert kept.load(A).result() is None
    assert not file_of(A).exists()
