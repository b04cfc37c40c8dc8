"""The documentation: it builds, its links lead somewhere, and what it names is there and runs as it says."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
READ = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
REPOSITORY = "https://github.com/edgechat/edgechat/blob/main/"
FROM_ELSEWHERE = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(?:https?:)?//|@import|<link[^>]*https?://"
)

each_page = pytest.mark.parametrize("page", READ, ids=lambda page: page.name)


def build(project):
    """Build the documentation of a project as `make docs` does."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)


@pytest.fixture
def project(tmp_path):
    """A copy of what the documentation is made from."""
    folder = tmp_path / "project"
    shutil.copytree(ROOT / "docs", folder / "docs")
    (folder / "packaging").mkdir()
    for name in ("mkdocs.yml", "packaging/docs.py", "packaging/app.svg"):
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.mark.alone
def test_it_builds_and_fetches_nothing_from_elsewhere(project):
    done = build(project)
    assert done.returncode == 0, done.stderr
    built = project / "build" / "docs"
    assert (built / "app.svg").read_bytes() == (ROOT / "packaging" / "app.svg").read_bytes()
    assert {page.stem for page in PAGES} <= {page.stem for page in built.glob("*.html")}
    for page in built.glob("*.html"):
        assert FROM_ELSEWHERE.search(page.read_text(encoding="utf-8")) is None, page.name


@pytest.mark.alone
@pytest.mark.parametrize("link", ["[a](nowhere.md)", "[a](app.md#nowhere)", "![a](nowhere.png)"])
def test_a_broken_link_fails(project, link):
    with (project / "docs" / "index.md").open("a", encoding="utf-8") as page:
        page.write(f"\n{link}\n")
    done = build(project)
    assert done.returncode != 0
    assert "nowhere" in done.stderr


def linked(page):
    """Return the files of the repository that a page links to."""
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    there = [link.removeprefix(REPOSITORY) for link in links if link.startswith(REPOSITORY)]
    near = [link for link in links if page.parent == ROOT and "://" not in link and not link.startswith("#")]
    return there + near


@each_page
def test_linked_files_of_the_repository_exist(page):
    assert [link for link in linked(page) if not (ROOT / link).is_file()] == []


def test_the_readme_is_short_and_names_every_page():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.split()) < 900
    assert [page.name for page in PAGES if f"/docs/{page.name})" not in readme] == ["index.md"]


# Commands.


@pytest.fixture(scope="module")
def product():
    """What edgechat has that has a name, as the guide's corpus knows it."""
    sys.path.insert(0, str(ROOT / "packaging" / "guide"))
    yield importlib.import_module("product").product()
    sys.path.pop(0)


def commands(page):
    """Return the commands of the program on a page."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    lines = [line.partition("  #")[0] for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`(edgechat [^`]+)`", text)
    parts = [re.sub(r"\bCOMMAND\b.*", "", part.strip()) for line in lines for part in line.split(" | ")]
    return [part for part in parts if re.match(r"edgechat(\s|$)", part) and "--child" not in part]


@each_page
def test_commands_are_those_of_the_program(page, product):
    assert [command for command in commands(page) if product._untrue_line(command)] == []


@pytest.mark.parametrize("name", ["app.md", "command-line.md"])
def test_slash_commands_are_those_of_the_program(name, product):
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    known = set(product.slashes) if name == "app.md" else set(product.inside) - {"help"}
    rows = "".join(re.findall(r"^\| `/.*$", text, re.MULTILINE))
    assert set(re.findall(r"`/([a-z-]+)", rows)) - {""} == known


# The source.


def found(name):
    """Return the module, class, function or constant of a dotted name. Raises AttributeError."""
    parts = name.split(".")
    for at in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:at]))
        except ModuleNotFoundError:
            continue
        for part in parts[at:]:
            thing = getattr(thing, part)
        return thing
    raise AttributeError(name)


def test_functions_that_are_named_exist():
    names = re.findall(r"`(edgechat(?:\.\w+)+)`", ARCHITECTURE)
    assert len(names) > 50
    for name in names:
        assert found(name) is not None, name


def named(page):
    """Return the paths, or patterns of paths, that a page names."""
    pattern = r"`((?:tests|packaging|benchmarks|docs)/[\w./*-]+)`"
    return re.findall(pattern, page.read_text(encoding="utf-8"))


@each_page
def test_files_that_are_named_exist(page):
    assert [path for path in named(page) if not list(ROOT.glob(path))] == []


@pytest.mark.parametrize(("look", "least"), [(linked, 10), (commands, 200), (named, 10)])
def test_pages_have_what_is_looked_for(look, least):
    assert sum(len(look(page)) for page in READ) >= least


PROFILE = """
import os, sys, threading

names = frozenset(os.environ["PROFILED"].split())
told = open(os.path.join(os.environ["PROFILE"], str(os.getpid())), "w", buffering=1)

def profile(frame, event, argument):
    if event == "call":
        name = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"
        name = name.replace("__main__", "edgechat.__main__", name.startswith("__main__."))
        if name in names:
            told.write(name + "\\n")

threading.setprofile(profile)
sys.setprofile(profile)
"""


def walk(*titles):
    """Return the functions in the tables below some headings of the architecture's walk, in their order."""
    sections = [ARCHITECTURE.split(f"### {title}\n", 1)[1].split("\n#", 1)[0] for title in titles]
    return [name for text in sections for name in re.findall(r"^\| `(edgechat[\w.]+)`", text, re.MULTILINE)]


def test_the_walk_of_a_prompt_is_what_happens(tmp_path):
    """`edgechat run` under a profile, in the front end and in its worker."""
    front = walk("Loading: front end process", "Down: front end process", "Up: front end process")
    worker = walk("Down: worker process", "Up: worker process")
    (tmp_path / "profile").mkdir()
    (tmp_path / "sitecustomize.py").write_text(PROFILE, encoding="utf-8")
    variables = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PROFILED": " ".join([*front, *worker]),
        "PROFILE": str(tmp_path / "profile"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "edgechat", "run", "guide", "Hi"],
        env=os.environ | variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    traces = [file.read_text().splitlines() for file in (tmp_path / "profile").iterdir()]
    for expected, starts in ((front, front[1]), (worker, worker[0])):
        trace = next(one for one in traces if starts in one)
        assert missing(expected, trace) == ""


def missing(expected, trace):
    """Return the first name that is not called after those before it; '' where all come in this order."""
    at = 0
    for name in expected:
        try:
            at = trace.index(name, at) + 1
        except ValueError:
            return name
    return ""
