"""Tab completes edgechat in the shells themselves, from the files that are shipped."""

import os
import shlex
import shutil
import subprocess
import sys
from functools import partial

import pytest

from edgechat.models.local.resolve import entry_of
from tests import homes
from tests.kit.build import tiny
from tests.terminal import Terminal, needs_tmux

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="bash and fish are asked")

NAME = "mistral-7b-v0.3"
BREAKS = " \t\n\"'><=;|&(:"
"""Where bash ends words, as long as nobody changes it."""


@pytest.fixture(scope="module")
def completions(script, tmp_path_factory):
    """The folder of the files."""
    folder = tmp_path_factory.mktemp("completions")
    script("completions").write_completions(folder)
    return folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to stand in, with a model and a folder; models in the hub's cache; and edgechat on PATH."""
    homes.settle(tmp_path / "user", monkeypatch)
    model, other = tiny(), tiny(seed=2)  # the same file twice would be one
    entry = entry_of(NAME)
    homes.in_hub(tmp_path / "user", model, entry.repo, entry.file.format(quant="Q4_K_M"))
    homes.in_hub(tmp_path / "user", other, entry.repo, entry.file.format(quant="Q8_0"))
    program = tmp_path / "bin" / "edgechat"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m edgechat "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    folder = tmp_path / "here"
    homes.place(model, folder / "my.gguf")
    (folder / "my notes").mkdir()
    monkeypatch.chdir(folder)
    return folder


def bash(completions, line, *, breaks=BREAKS):
    """Return what bash would put in place of the last word, cut as bash cuts; nothing: it completes paths."""
    ask = (
        f"source {shlex.quote(str(completions / 'edgechat.bash'))}; COMP_WORDBREAKS={shlex.quote(breaks)}; "
        f"COMP_LINE={shlex.quote(line)}; "
        "COMP_POINT=${#COMP_LINE}; _edgechat_completion edgechat; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    return _lines("bash", "--norc", "-c", ask)


def fish(completions, line):
    """Return what fish would offer."""
    ask = f"source {shlex.quote(str(completions / 'edgechat.fish'))}; complete -C {shlex.quote(line)}"
    return [one.partition("\t")[0] for one in _lines("fish", "--no-config", "-c", ask)]


def _lines(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


@pytest.fixture(params=[bash, fish], ids=["bash", "fish"])
def tab(request, completions, place):
    """A function from a line to what is offered."""
    if shutil.which(request.param.__name__) is None:
        pytest.skip(f"{request.param.__name__} is not installed")
    return partial(request.param, completions)


def test_the_files_are_called_as_shells_look_for_them(completions):
    names = sorted(path.name for path in completions.iterdir())
    assert names == ["_edgechat", "edgechat.bash", "edgechat.fish", "edgechat.ps1"]
    powershell = (completions / "edgechat.ps1").read_text()
    assert "Register-ArgumentCompleter -Native -CommandName edgechat" in powershell
    assert '$Env:_EDGECHAT_COMPLETE = "complete_powershell"' in powershell


@pytest.mark.slow
def test_commands_options_and_values(tab):
    assert tab("edgechat ru") == ["run"]
    assert tab("edgechat run --te") == ["--temperature"]
    assert tab("edgechat run guide --backend ll") == ["llama.cpp"]


def test_models(tab):
    """Those that are here, whoever keeps them, and files in the folder; paths are left to the shell."""
    assert sorted(tab("edgechat run ")) == ["guide", f"{NAME}:Q4_K_M", f"{NAME}:Q8_0", "my.gguf"]
    assert tab("edgechat pull mistral") == [NAME]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("breaks", "named", "joined"),
    [
        (BREAKS, "Q8_0", "Q8_0"),
        (BREAKS.replace(":", ""), f"{NAME}:Q8_0", f"{NAME}:Q8_0"),
        (BREAKS.replace("=", ""), "Q8_0", "Q8_0"),
        (" ", f"{NAME}:Q8_0", f"--model={NAME}:Q8_0"),
    ],
    ids=["both", "no colon", "no equals", "neither"],
)
def test_bash_goes_on_where_its_own_word_begins(completions, place, breaks, named, joined):
    """Its words end at colons and equals signs, so that it wants only what follows the last one."""
    assert bash(completions, f"edgechat run {NAME}:Q8", breaks=breaks) == [named]
    assert bash(completions, f"edgechat --model={NAME}:Q8", breaks=breaks) == [joined]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_says_nothing_where_the_program_is_broken(completions, place, home):
    config = home / "config"
    config.mkdir(parents=True, exist_ok=True)
    (config / "models.toml").write_text("[[model]\n")
    assert bash(completions, "edgechat run guid") == []
    assert bash(completions, "edgechat run --te") == ["--temperature"]
    (place.parent / "bin" / "edgechat").write_text("#!/bin/sh\necho broken >&2; exit 3\n")
    assert bash(completions, "edgechat ru") == []


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_paths_and_joined_options(completions, place):
    assert fish(completions, "edgechat run ./my") == ["./my notes/", "./my.gguf"]
    assert fish(completions, "edgechat run guide --backend=ll") == ["--backend=llama.cpp"]


@needs_tmux
@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_in_a_terminal(completions, place, tmp_path, home):
    """The first Tab of a shell counts, as the function is loaded by it."""
    with Terminal(tmp_path / "terminal", home=home) as terminal:
        path = shlex.quote(os.environ["PATH"])
        terminal.ask(f"cd {shlex.quote(str(place))}; PATH={path} PS1='%% ' zsh -f")
        terminal.ask(f"fpath=({shlex.quote(str(completions))} $fpath); autoload -Uz compinit; compinit -u -D")
        terminal.ask("echo rea''dy")
        terminal.until("\nready")
        for typed, wanted in (
            ("edgechat ru", "edgechat run "),
            (" --te", "--temperature "),
            ("0 --backend=ll", "--backend=llama.cpp "),
            (f"{NAME}:Q8", f"{NAME}:Q8_0 "),
        ):
            terminal.type(typed)
            terminal.press("Tab")
            terminal.until(wanted.rstrip())
        terminal.press("C-c")
        terminal.type("edgechat import ./my\\ n")
        terminal.press("Tab")
        terminal.until("edgechat import ./my\\ notes/")
