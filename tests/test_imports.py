"""The shape of the package: imports in one direction, short chains of them, folders that fit on a screen."""

import ast
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
"""Entries of a folder."""
# Messages that Textual names by the widget they are nested in: `SettingRow.Chosen`.
NESTED = {"Changed", "Chosen"}


@cache
def imports():
    """Return what each module imports, be it inside a function or for types alone."""
    graph = grimp.build_graph("edgechat", cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def test_there_is_no_import_circle():
    assert len(imports()) > 500
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
    folders = [ROOT, *(path for path in ROOT.rglob("*") if path.is_dir() and path.name != "__pycache__")]
    unseen = ("__pycache__", "py.typed", "__main__.py")  # nobody looks for them
    sizes = {path: sum(one.name not in unseen for one in path.iterdir()) for path in folders}
    assert {path.name: n for path, n in sizes.items() if n > MOST} == {}


def test_a_class_name_has_one_meaning():
    places = defaultdict(list)
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1 and name not in NESTED} == {}
