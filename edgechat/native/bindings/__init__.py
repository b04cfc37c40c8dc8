"""llama.cpp's functions, as llama-cpp-python declares them: `lib`.

The package `llama_cpp` itself imports its high-level interface, and with it Jinja, a cache on disk and more:
a quarter of the start of a child that needs nothing but these functions.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from typing import Any


def version() -> str:
    """Return the version of llama-cpp-python."""
    try:
        return importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:  # the package says so, too, but is slow to import
        import llama_cpp

        return str(llama_cpp.__version__)


def _import_without_interface() -> None:
    """Let `llama_cpp` be a package whose own code runs when something of its interface is asked for."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.loader is None:
        return  # the import below says so
    package, loader = importlib.util.module_from_spec(spec), spec.loader

    def of_interface(name: str) -> Any:
        if name.startswith("__") and name != "__version__":  # which Python itself looks for
            raise AttributeError(f"module {package.__name__!r} has no attribute {name!r}")
        del package.__getattr__
        loader.exec_module(package)
        return getattr(package, name)

    package.__getattr__ = of_interface  # type: ignore[method-assign]
    sys.modules["llama_cpp"] = package


if "llama_cpp" not in sys.modules:
    _import_without_interface()
import llama_cpp.llama_cpp as lib  # noqa: E402

__all__ = ["lib", "version"]
