"""The shape of the package: imports in one direction, short chains of them, folders that fit on a screen.

And what commands import as they run, which is most of the time that they take.
"""

import ast
import subprocess
import sys
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1] / "edgechat"
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
LONGEST = 8
"""Modules of one package that import each other in a row."""
MOST = 14
"""Entries of a folder; the packages of the root are the layers of pyproject.toml."""
COSTLY = (
    "asyncio",
    "concurrent.futures",
    "httpx2",
    "huggingface_hub",
    "importlib.metadata",
    "jinja2",
    "llama_cpp",
    "msgspec",
    "numpy",
    "platformdirs",
    "psutil",
    "pydantic",
    "rich",
    "sqlite3",
    "textual",
    "tomllib",
    "typer",
)
"""Modules of 2 ms or more."""
# Messages that Textual names by the widget they are nested in: `SettingRow.Chosen`.
NESTED = {"Changed", "Chosen"}


@cache
def imports():
    """Return what each module imports, be it inside a function or for types alone."""
    graph = grimp.build_graph("edgechat", cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def test_there_is_no_import_circle():
    assert len(imports()) > 300
    TopologicalSorter(imports()).prepare()  # raises CycleError, which names the modules of a circle


@pytest.mark.parametrize("package", PACKAGES)
def test_chains_of_imports_are_short(package):
    inside = {module for module in imports() if module.startswith(f"edgechat.{package}.")}

    @cache
    def chain(module):
        below = (chain(other) for other in imports()[module] if other in inside)
        return (module, *max(below, key=len, default=()))

    longest = max(map(chain, inside), key=len)
    assert len(longest) <= LONGEST, " > ".join(longest)


def test_a_folder_fits_on_a_screen():
    folders = [path for path in ROOT.rglob("*") if path.is_dir() and path.name != "__pycache__"]
    unseen = ("__pycache__", "py.typed", "__init__.py", "__main__.py")  # nobody looks for them
    sizes = {path: sum(one.name not in unseen for one in path.iterdir()) for path in folders}
    assert {path.name: n for path, n in sizes.items() if n > MOST} == {}


@pytest.mark.slow
def test_a_class_name_has_one_meaning():
    places = defaultdict(list)
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1 and name not in NESTED} == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "command", "needed"),
    [
        (["--version"], set(), set()),
        (["--help"], set(), set()),
        (["list"], {"models"}, {"msgspec", "platformdirs"}),
        (["list", "--json"], {"models"}, {"msgspec", "platformdirs"}),
        (["chats"], {"chats"}, {"msgspec", "platformdirs", "sqlite3"}),
        (["chats", "--limit", "5"], {"chats"}, {"msgspec", "platformdirs", "sqlite3"}),
        (["pull", "--help"], {"pull"}, {"msgspec", "platformdirs"}),
        (["remote", "list", "--help"], {"remote"}, {"msgspec", "platformdirs"}),
    ],
)
def test_a_command_imports_only_what_it_needs(home, words, command, needed):
    if sys.platform != "linux" and words[0] == "list":
        needed = {*needed, "psutil"}  # which reads the memory
    code = (
        "import sys; from edgechat.cli.main import run_cli; code = run_cli(); "
        f"print(*(set(sys.modules) & {{*{COSTLY}}}), file=sys.stderr); "
        "commands = [name for name in sys.modules if name.startswith('edgechat.cli.commands.')]; "
        "print(*commands, file=sys.stderr)"
    )
    for _ in range(2):  # what is read for the first time is kept
        program = [sys.executable, "-c", code, *words]
        told = subprocess.run(program, capture_output=True, text=True, check=True, cwd=ROOT.parent).stderr
    costly, modules = (set(line.split()) for line in told.splitlines()[-2:])
    assert costly == needed
    assert {name.rpartition(".")[2] for name in modules} == command
