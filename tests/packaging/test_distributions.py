"""The wheel and the source archive: what is in them, and that they install and run far from the checkout."""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path, PurePosixPath

import pytest

from edgechat import __version__

ROOT = Path(__file__).parents[2]
SHIPPED = {
    "models.toml",
    "guide.gguf",
    "guide-draft.gguf",
    "guide.md",
    "quality.md",
    "quality.txt.xz",
    "skeletons.bin",
    *(f"completion/{name}" for name in ("_edgechat", "edgechat.bash", "edgechat.fish", "edgechat.ps1")),
    *(f"docs/{path.name}" for path in (ROOT / "docs").iterdir()),
}

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with both, as `make dist` makes them."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    with zipfile.ZipFile(built / f"edgechat-{__version__}-py3-none-any.whl") as wheel:
        yield wheel


@pytest.fixture(scope="module")
def source(built):
    """The files of the source archive, without the one folder that they are in."""
    with tarfile.open(built / f"edgechat-{__version__}.tar.gz") as archive:
        paths = [PurePosixPath(member.name) for member in archive if member.isfile()]
    assert {path.parts[0] for path in paths} == {f"edgechat-{__version__}"}
    return [PurePosixPath(*path.parts[1:]) for path in paths]


@pytest.fixture(scope="module")
def metadata(wheel):
    return Parser().parsestr(wheel.read(f"edgechat-{__version__}.dist-info/METADATA").decode())


@pytest.fixture(scope="module")
def site(built, tmp_path_factory):
    """A folder in which the wheel is installed; what it depends on is the environment's."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", folder]
    subprocess.run([*pip, *built.glob("*.whl")], check=True)
    return folder


def test_the_wheel_has_the_program_and_its_data_and_nothing_else(wheel):
    names = wheel.namelist()
    assert {name.split("/")[0] for name in names} == {"edgechat", f"edgechat-{__version__}.dist-info"}
    data = "edgechat/base/data/"
    assert {name.removeprefix(data) for name in names if name.startswith(data)} == SHIPPED
    assert "edgechat/py.typed" in names
    modules = {str(path.relative_to(ROOT).as_posix()) for path in (ROOT / "edgechat").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules
    assert wheel.read("edgechat/base/data/models.toml") == (ROOT / "models.toml").read_bytes()


def test_the_source_archive_has_what_git_has(source):
    tops = {path.parts[0] for path in source}
    assert {"edgechat", "tests", "benchmarks", "packaging", "models.toml", "Makefile", "CHANGELOG.md"} <= tops
    assert {"docs", "mkdocs.yml"} <= tops
    assert PurePosixPath(".github/workflows/ci.yml") in source  # a test reads it
    junk = {"__pycache__", "dist", "build", ".venv", ".models", ".mypy_cache", ".hypothesis"}
    assert [path for path in source if junk & set(path.parts) or path.suffix in {".pyc", ".log"}] == []


def test_the_metadata_says_where_it_comes_from(metadata):
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Description-Content-Type"] == "text/markdown"
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL", []))
    assert {"Homepage", "Changelog", "Issues"} <= urls.keys()


def test_the_readme_can_be_read_where_the_repository_is_not(metadata):
    links = re.findall(r"\]\(([^)]+)\)", metadata.get_payload())
    assert links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def run(site, home, *words):
    """Return what the installed command says, in a folder and a home that have nothing of the checkout."""
    home.mkdir(exist_ok=True)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("EDGECHAT")}
    variables |= {"PYTHONPATH": str(site), "HOME": str(home), "USERPROFILE": str(home)}
    # Where settings and chats lie follows other variables too, which are the tester's.
    variables |= {"EDGECHAT_OFFLINE": "1", "EDGECHAT_HOME": str(home / "edgechat")}
    command = next(site.glob("[bS]*/edgechat*"))  # bin, or Scripts
    done = subprocess.run(
        [command, *words], cwd=home, env=variables, stdin=subprocess.DEVNULL, capture_output=True, timeout=100
    )
    assert done.returncode == 0, done.stderr.decode()
    assert str(ROOT) not in done.stdout.decode()
    return done.stdout.decode()


def test_the_command_runs_from_what_was_installed(site, tmp_path):
    home = tmp_path / "home"
    assert run(site, home, "--version").split() == ["edgechat", __version__]
    guide = json.loads(run(site, home, "show", "guide", "--json"))
    assert guide["files"] == [str(site / "edgechat" / "base" / "data" / "guide.gguf")]
    answer = json.loads(run(site, home, "run", "guide", "What is edgechat?", "--json"))
    assert "chat with a language model on your own machine" in answer["text"]


def test_the_catalogue_and_the_skeletons_are_the_installed_ones(site, tmp_path):
    """A plan for a model that is not here asks for both."""
    words = ("plan", "tinyllama-1.1b", "--json", "--bandwidth", "50GB/s")
    assert json.loads(run(site, tmp_path / "home", *words))["model"] == "tinyllama-1.1b"
    for name in ("models.toml", "skeletons.bin"):
        path = site / "edgechat" / "base" / "data" / name
        away = path.rename(path.with_suffix(".away"))
        try:
            with pytest.raises(AssertionError, match="error: "):
                run(site, tmp_path / "home", *words)
        finally:
            away.rename(path)
