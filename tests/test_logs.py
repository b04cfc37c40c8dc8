"""Logs: where records go, what of an exception is in them, and how large and how private the files are."""

import io
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from edgechat.base import logs, paths

SECRET = "what somebody asked"
LOG = logging.getLogger("edgechat.somewhere")


@pytest.fixture(autouse=True)
def as_before():
    loggers = [logging.getLogger(name) for name in ("", "edgechat", "edgechat.server")]
    before = [(list(logger.handlers), logger.level) for logger in loggers]
    loggers[1].handlers.clear()
    yield
    for logger, (handlers, level) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)
    logging.raiseExceptions = True


def fail(logger=LOG):
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise ValueError(SECRET) from error
    except ValueError as error:
        logger.error("a fault", exc_info=error)


def files():
    return {path.name: path.read_text() for path in paths.log_dir().iterdir()}


def test_a_front_end_writes_time_level_name_and_where_it_failed_but_not_over_what():
    logs.to_file()
    assert files() == {}
    LOG.debug("not this")
    LOG.info("well \x1b[31mdone")
    fail()
    (text,) = files().values()
    lines = text.splitlines()
    assert lines[0].endswith(" INFO edgechat.somewhere: well [31mdone")
    assert lines[0].startswith("20")
    assert lines[1].endswith(" ERROR edgechat.somewhere: a fault")
    assert text.count("Traceback (most recent call last):") == 2
    assert lines[-1] == "ValueError"
    assert "KeyError" in lines
    assert SECRET not in text


def test_a_front_ends_logs_are_private_and_bounded(monkeypatch):
    monkeypatch.setattr(logs, "MOST_BYTES", 1000)
    logs.to_file()
    logs.to_file()  # again is no harm
    for number in range(200):
        LOG.info("line %d", number)
    found = files()
    assert found.keys() == {"edgechat.log", "edgechat.log.1", "edgechat.log.2"}
    assert all(len(text) <= 1000 for text in found.values())
    assert found["edgechat.log"].count("line 199\n") == 1
    if sys.platform != "win32":
        modes = {stat.S_IMODE(path.stat().st_mode) for path in paths.log_dir().iterdir()}
        assert modes == {0o600}


def test_a_folder_that_is_none_costs_the_log_until_it_is_one(home, capsys):
    home.write_text("no folder")
    logs.to_file()
    LOG.info("lost")
    fail()
    assert capsys.readouterr() == ("", "")
    home.unlink()
    LOG.info("kept")
    (text,) = files().values()
    assert (text.count("\n"), "kept" in text) == (1, True)


@pytest.mark.parametrize(("verbose", "debug"), [(False, False), (True, False), (False, True)])
def test_a_servers_terminal(verbose, debug, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := io.StringIO())
    logs.to_file()
    logs.to_terminal(verbose=verbose, debug=debug)
    LOG.error("not of the server")
    server = logging.getLogger("edgechat.server.http")
    server.info("a request")
    fail(server)
    text = terminal.getvalue()
    assert "not of the server" not in text
    assert ("a request" in text) is verbose
    assert "a fault" in text
    assert ("Traceback" in text) is (SECRET in text) is debug
    assert SECRET not in "".join(files().values())


WORKER = """
import contextlib, logging, os
from edgechat.base import logs
from edgechat.base.process import spawn
_, outgoing = spawn.adopt_pipe()
logs.MOST_BYTES = 10_000
logs.to_stderr()
log = logging.getLogger("edgechat.engine")
for number in range(1000):
    log.info("line %d", number)
    if number % 10 == 0:
        with contextlib.suppress(OSError):
            os.write(2, b"native\\n")
outgoing.write(b"went on")
"""


def work(log):
    words = [sys.executable, "-c", WORKER]
    return subprocess.run(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, check=True).stdout


def test_a_workers_log_keeps_its_end(tmp_path):
    path = tmp_path / "engine.log"
    log = paths.private(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        assert work(log) == b"went on"
    finally:
        os.close(log)
    lines = path.read_text().splitlines()
    assert 5_000 < path.stat().st_size <= 10_100
    assert lines[-1].endswith(" INFO edgechat.engine: line 999")
    assert "native" in lines
    ours = [int(line.split()[-1]) for line in lines if line != "native"]
    assert ours == list(range(ours[0], 1000))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is always full")
def test_a_worker_goes_on_where_its_log_is_full():
    with open("/dev/full", "wb") as full:
        assert work(full.fileno()) == b"went on"
