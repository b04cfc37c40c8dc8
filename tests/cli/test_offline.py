"""`--offline`: every command that could touch the network takes it, and says by its name what it keeps."""

import os
import sys

import pytest

from edgechat.base.network.offline import OFFLINE, OFFLINE_OPTION, offline_by
from edgechat.cli.main import app, translated
from tests.cli.running import edgechat
from tests.kit import tiny

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("hub", "hf_cache", "measured")]
REPO = "owner/tiny-GGUF"


@pytest.mark.parametrize("command", ["", *sorted(set(app.commands) - {"chats", "worker"})])
def test_every_command_takes_it(command):
    taken = app.commands[command] if command else app
    assert OFFLINE_OPTION in [name for one in taken.params for name in one.opts]


@pytest.mark.parametrize(
    "words",
    [
        ("pull", f"{REPO}:Q8_0", "--offline"),
        ("--offline", "pull", f"{REPO}:Q8_0"),
        ("pull", "qwen3-8b", "--offline"),
        ("plan", "owner/other", "--offline"),
        ("--offline", "plan", "owner/other"),
    ],
)
def test_the_error_names_the_option_and_not_a_variable(hub, words):
    hub.add(REPO, {"tiny-F32.gguf": tiny(), "tiny-Q8_0.gguf": tiny()})
    run = edgechat(*words)
    assert (run.returncode, run.stdout) == (1, "")
    assert "--offline keeps edgechat offline" in run.stderr
    assert "Run the same command without --offline." in run.stderr
    assert OFFLINE not in run.stderr
    assert hub.seen == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("list", "--offline"), 0),
        (("show", "guide", "--offline"), 0),
        (("plan", "guide", "--offline"), 0),
        (("run", "guide", "hi", "--offline"), 0),
        (("--offline", "run", "guide", "hi"), 0),
        (("--offline", "chats"), 0),
        (("bench", "owner/none", "--offline"), 1),
        (("serve", "owner/none", "--port", "0", "--offline"), 1),
    ],
)
def test_what_is_here_works_and_the_rest_is_no_wrong_usage(hub, words, code):
    run = edgechat(*words)
    assert run.returncode == code, run
    assert hub.seen == []


def test_images_cannot_be_fetched_without_a_network():
    run = edgechat("serve", "guide", "--port", "0", "--offline", "--fetch-images")
    assert (run.returncode, run.stdout) == (1, "")
    assert "--fetch-images needs the network, and --offline keeps edgechat offline" in run.stderr


def test_it_ends_with_the_command(monkeypatch, capsys):
    for before in (None, "0"):
        monkeypatch.delenv(OFFLINE, raising=False)
        if before is not None:
            monkeypatch.setenv(OFFLINE, before)
        monkeypatch.setattr(sys, "argv", ["edgechat", "plan", "owner/other", "--offline"])
        assert translated(lambda: app(standalone_mode=True)) == 1
        assert "--offline keeps" in capsys.readouterr().err
        assert os.environ.get(OFFLINE) == before


def test_who_switches_it_off(monkeypatch):
    assert offline_by() is None
    monkeypatch.setenv("HF_HUB_OFFLINE", "yes")
    assert offline_by() == "HF_HUB_OFFLINE"
    monkeypatch.setenv(OFFLINE, "On")
    assert offline_by() == OFFLINE
    monkeypatch.setenv(OFFLINE, OFFLINE_OPTION)
    assert offline_by() == OFFLINE_OPTION


def test_children_and_the_app_hear_of_it(monkeypatch, home):
    from edgechat.tui.models.library import ModelLibrary

    monkeypatch.setenv(OFFLINE, OFFLINE_OPTION)
    assert ModelLibrary.real().offline() == OFFLINE_OPTION
