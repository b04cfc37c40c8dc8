"""The man pages say what the program does: all commands and options, variables, exit codes and folders."""

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from edgechat.base import errors, paths
from edgechat.cli import main
from edgechat.cli.terminal_io import SIGNAL_EXIT

ROOT = Path(__file__).parents[2]
# Variables that are asked for, and are no matter of edgechat's page.
NOT_OURS = {
    "TERM",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "TERM_PROGRAM",
    "APPDATA",
    "LOCALAPPDATA",
    "XDG_CONFIG_HOME",
    "HF_HUB_DISABLE_PROGRESS_BARS",
    "HF_HUB_DISABLE_TELEMETRY",
    "UV_OFFLINE",
    # A shell's question after Tab.
    "COMP_WORDS",
    "COMP_CWORD",
    "_EDGECHAT_COMPLETE",
    "_TYPER_COMPLETE_ARGS",
    "_TYPER_COMPLETE_FISH_ACTION",
    "_TYPER_COMPLETE_WORD_TO_COMPLETE",
}


@pytest.fixture(scope="module")
def manpage(script):
    return script("manpage")


@pytest.fixture(scope="module")
def pages(manpage, tmp_path_factory):
    """The pages by name, as roff."""
    written = manpage.write_pages(tmp_path_factory.mktemp("man"))
    return {path.name: path for path in written}


@pytest.fixture(scope="module")
def plain(pages):
    """The text of a page without its macros."""

    def read(name):
        text = pages[name].read_text()
        return re.sub(r"\\f[BIR]|\\&", "", text).replace(r"\-", "-").replace(r"\(ti", "~")

    return read


def test_every_command_has_a_page_with_every_option(plain, pages):
    root = main.app
    assert set(pages) == {"edgechat.1", *(f"edgechat-{name}.1" for name in root.commands)}
    for name, command in root.commands.items():
        assert f"edgechat-{name}" in plain("edgechat.1")
        for one in (command, *getattr(command, "commands", {}).values()):
            for param in one.params:
                for option in param.opts if param.param_type_name == "option" else ():
                    assert option in plain(f"edgechat-{name}.1"), f"{option} of {name}"


def test_values_limits_and_defaults_are_told(plain):
    assert (
        "--temperature NUMBER\n0 always takes the most likely token; higher values vary more. [0<=x<=5]"
        in plain("edgechat-run.1")
    )
    assert "[default: 5; 1<=x<=100]" in " ".join(plain("edgechat-bench.1").split())
    assert "edgechat plan [OPTIONS] [MODEL]..." in plain("edgechat-plan.1")


def test_what_json_prints_is_told_where_there_is_json(manpage, plain):
    root = main.app
    for name in manpage.JSON_FORMS:
        assert any("--json" in param.opts for param in root.commands[name].params)
        assert ".SH JSON" in plain(f"edgechat-{name}.1")
    assert "accelerators" in plain("edgechat-device.1")


def test_the_variables_are_those_that_the_program_asks_for(manpage):
    asked = set()
    for source in (ROOT / "edgechat").rglob("*.py"):
        text = source.read_text()
        asked |= set(re.findall(r"environ(?:\.get\(|\[)\"([A-Z_]+)\"", text))
        asked |= set(re.findall(r"\b(EDGECHAT_[A-Z]+|HF_[A-Z_]+|[A-Z]+_OFFLINE)\b", text))
    told = " ".join([*manpage.ENVIRONMENT, *manpage.ENVIRONMENT.values()])
    assert asked - NOT_OURS <= set(re.findall(r"[A-Z_]+", told))
    settings = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert [name for name in manpage.ENVIRONMENT if f"`{name}`" not in settings] == []


def test_the_exit_codes_are_those_of_the_program(manpage):
    own = {main.USAGE_ERROR, main.ENGINE_FAILURE, main.INTERRUPTED}
    own |= {SIGNAL_EXIT + number for number in (signal.SIGTERM, getattr(signal, "SIGHUP", 1))}
    kinds = [errors.EdgechatError]
    for kind in kinds:
        own.add(kind.exit_code)
        kinds += kind.__subclasses__()
    assert set(manpage.EXIT_STATUS) == own | {0}


def test_the_folders_are_those_of_the_program(manpage, tmp_path, monkeypatch):
    monkeypatch.delenv("EDGECHAT_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    told = {file.replace("~", str(tmp_path), 1) for file in manpage.files()}
    folders = (paths.config_dir(), paths.data_dir(), paths.cache_dir(), paths.log_dir())
    for folder in folders:
        assert any(Path(file).is_relative_to(folder) for file in told), folder
    assert all(any(Path(file).is_relative_to(folder) for folder in folders) for file in told)


def test_the_examples_are_those_of_the_documentation(plain):
    page = plain("edgechat.1")
    assert page.count(".TP\nedgechat") > 10
    assert "git diff | edgechat run model.gguf" in page


def test_what_roff_would_take_for_its_own_is_escaped(script):
    roff = script("roff")
    assert roff.escaped(r".TH -x 'a\b'") == r"\&.TH \-x \(aqa\eb\(aq"
    assert roff.prose("... see `edgechat list`") == r"\&... see \fBedgechat list\fR"
    assert not any(line.startswith((".", "'")) for line in roff.prose("word ... " * 40).splitlines())


def test_the_date_comes_from_outside(manpage, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1790000000")
    first = manpage.write_pages(tmp_path / "a")[0].read_bytes()
    assert first == manpage.write_pages(tmp_path / "b")[0].read_bytes()
    assert b'"2026-09-21"' in first.splitlines()[0]


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed")
def test_mandoc_has_nothing_to_say(manpage, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1790000000")
    pages = manpage.write_pages(tmp_path)
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", *pages], capture_output=True, text=True, check=False
    )
    assert done.stdout == ""
