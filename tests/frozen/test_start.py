"""The frozen program starts wherever it lies and however it is called, and says what is wrong in words."""

import subprocess
import sys
from pathlib import Path

import pytest

from edgechat import __version__
from tests.frozen.program import inside

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such links")


def test_the_version(program):
    assert program.said("--version") == f"edgechat {__version__}\n"


def test_the_help_names_the_commands(program):
    said = program.said("--help")
    assert said.startswith("Usage: edgechat ")
    for command in ("run", "plan", "pull", "device", "doctor", "chats"):
        assert f"\n  {command} " in said


def test_a_mistyped_command_is_told_with_the_right_one(program):
    said = program.complaint("plna", code=2)
    assert "Did you mean 'plan'?" in said
    assert said.startswith("Usage: edgechat ")


def test_without_a_terminal_the_app_says_what_to_do_instead(program):
    assert "edgechat run guide" in program.complaint(code=2)


def test_a_model_that_is_not_here(program):
    assert "no file 'nosuch'" in program.complaint("run", "nosuch", "Hi")


@posix
@pytest.mark.parametrize("by", ["link", "PATH"])
def test_it_is_found_through_a_link_and_by_its_name(program, tmp_path, by):
    link = tmp_path / "edgechat"
    link.symlink_to(program.path)
    command, path = (str(link), "") if by == "link" else ("edgechat", str(tmp_path))
    words = ["env", f"PATH={path}", command, "run", "guide", "What is edgechat?", "--no-store"]
    run = subprocess.run(
        words, env=program.environment(PATH="/usr/bin:/bin"), capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run
    assert "language model" in run.stdout


def test_a_first_run_leaves_things_only_at_home(newcomer):
    """That nothing appears in the program's folder, and no temporary file stays, every test here sees."""
    newcomer.said("run", "guide", "What is a quant?")
    beside = [path.name for path in newcomer.home.parent.iterdir()]
    assert beside == [newcomer.home.name]
    kept = [path for path in inside(newcomer.home) if "edgechat" in path]
    assert kept
    assert set(inside(newcomer.home)) - set(kept) <= {
        "nothing",
        "temporary",
        *(str(Path(folder)) for folder in (".cache", ".config", ".local", ".local/share", ".local/state")),
        *(str(Path("Library", folder)) for folder in ("", "Application Support", "Caches", "Logs")),
    }


def test_completion_comes_from_the_program_itself(program):
    said = program.said(_EDGECHAT_COMPLETE="complete_bash", COMP_WORDS="edgechat pl", COMP_CWORD="1")
    assert said.split() == ["plan"]
