"""No module of edgechat imports itself in a circle, be it inside a function or for types alone."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_there_is_no_import_circle() -> None:
    graph = grimp.build_graph("edgechat", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules of a circle
