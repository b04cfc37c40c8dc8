"""The code base in figures: files, lines by kind, imports between packages, private names used elsewhere.

Run it as `make house`. `--imports` adds each package's imports; `--private` adds where private names occur.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1] / "edgechat"
SMALL, LARGE = 80, 600
"""Line counts: a smaller file may be too small for a topic of its own; a larger one may cover two topics."""
PUBLIC = {"_asdict", "_exit", "_replace"}
"""Names that Python documents, despite the underscore."""
KINDS = ("code", "imports", "docstrings", "comments", "blank")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Source:
    """A Python file and its line counts by kind."""

    path: Path
    tree: ast.Module
    lines: Counter[str]
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=list)
    classes: list[ast.ClassDef] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Source:
        """Read a file and count its lines."""
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        kinds = dict.fromkeys(range(1, len(text.splitlines()) + 1), "code")
        kinds |= {number: "blank" for number, line in enumerate(text.splitlines(), 1) if not line.strip()}
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and token.line.strip().startswith("#"):
                kinds[token.start[0]] = "comments"
        nodes = list(ast.walk(tree))
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                kinds |= dict.fromkeys(range(node.lineno, (node.end_lineno or 0) + 1), "imports")
            # A string on its own documents what is above it.
            elif (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                kinds |= dict.fromkeys(range(node.lineno, (node.end_lineno or 0) + 1), "docstrings")
        functions = [node for node in nodes if isinstance(node, FUNCTIONS)]
        classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        return cls(path, tree, Counter(kinds.values()), functions, classes)

    @property
    def name(self) -> str:
        """The path inside the package."""
        return self.path.relative_to(ROOT).as_posix()


def foreign_names(sources: list[Source]) -> dict[str, set[str]]:
    """Return the private names of third-party packages, each with the files that use it.

    These are imports of private modules and names, private attributes that nothing in edgechat defines, and
    overrides of private methods.
    """
    ours = {name for source in sources for name in _defined(source.tree)}
    used: defaultdict[str, set[str]] = defaultdict(set)
    for source in sources:
        origins: dict[str, tuple[str, str]] = {}
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith("edgechat"):
                origins |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
                for alias in node.names:
                    if any(_is_private(part) for part in (*node.module.split("."), alias.name)):
                        used[f"{node.module}.{alias.name}"].add(source.name)
            elif isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in ours:
                used[node.attr].add(source.name)
        for node in source.classes:
            for base in (
                origins[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in origins
            ):
                for name in _overridden(node, *base):
                    used[f"{base[1]}.{name}"].add(source.name)
    return used


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in PUBLIC


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.attr if isinstance(node, ast.Attribute) else node.id


def _overridden(node: ast.ClassDef, module: str, name: str) -> list[str]:
    try:
        base = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):  # MLX is not installed everywhere
        return []
    methods = [one.name for one in node.body if isinstance(one, FUNCTIONS)]
    return [method for method in methods if _is_private(method) and hasattr(base, method)]


def package_imports() -> dict[str, Counter[str]]:
    """Return, for each package, how many modules of each other package its modules import."""
    graph = grimp.build_graph("edgechat", cache_dir=None)
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            one, two = ([*name.split("."), ""][1] for name in (module, other))
            if one and two and one != two:
                found[one][two] += 1
    return found


def floors(imports: dict[str, Counter[str]]) -> list[list[str]]:
    """Return the packages by layer, lowest first; each imports only from the layers below."""
    floor: dict[str, int] = {}
    for package in TopologicalSorter({one: set(others) for one, others in imports.items()}).static_order():
        floor[package] = 1 + max((floor[other] for other in imports.get(package, ())), default=-1)
    return [sorted(name for name in floor if floor[name] == n) for n in range(max(floor.values()) + 1)]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--imports", action="store_true", help="the imports of each package")
    parser.add_argument("--private", action="store_true", help="the files that use each private name")
    options = parser.parse_args()
    sources = [Source.read(path) for path in sorted(ROOT.rglob("*.py"))]
    lines = sum((source.lines for source in sources), Counter[str]())
    sizes = sorted(((source.lines.total(), source.name) for source in sources), reverse=True)
    functions = [function for source in sources for function in source.functions]
    folders = {source.path.parent for source in sources}
    print(f"{len(sources)} files in {len(folders)} folders, {lines.total():,} lines:", end=" ")
    print(", ".join(f"{lines[kind]:,} {kind}" for kind in KINDS))
    small = sum(size < SMALL for size, _ in sizes)
    large = sum(size > LARGE for size, _ in sizes)
    print(f"{lines.total() / len(sources):.0f} lines a file; {small} below {SMALL}, {large} above {LARGE}")
    n_functions, n_classes = len(functions), sum(len(source.classes) for source in sources)
    mean = sum((one.end_lineno or 0) - one.lineno + 1 for one in functions) / n_functions
    print(f"{n_functions:,} functions of {mean:.0f} lines, {n_classes:,} classes;", end=" ")
    documented = sum(ast.get_docstring(one) is not None for one in functions)
    print(f"{documented / n_functions:.2f} docstrings a function")
    print("\nLongest files:")
    for size, name in sizes[:10]:
        print(f"  {size:5,}  {name}")
    imports = package_imports()
    print(f"\n{sum(map(len, imports.values()))} arrows between packages; from the lowest floor up:")
    for n, names in enumerate(floors(imports)):
        print(f"  {n:2}  {', '.join(names)}")
    if options.imports:
        for package, others in sorted(imports.items()):
            print(f"  {package}: {', '.join(f'{other} {n}' for other, n in others.most_common())}")
    private = foreign_names(sources)
    print(f"\n{len(private)} private names of others, in {len(set().union(*private.values()))} files")
    if options.private:
        for name, files in sorted(private.items()):
            print(f"  {name}: {', '.join(sorted(files))}")


if __name__ == "__main__":
    main()
