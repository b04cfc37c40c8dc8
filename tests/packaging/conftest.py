"""Access to the scripts in packaging/binary, which is not a Python package."""

import importlib
import sys
from pathlib import Path

import pytest

BINARY = Path(__file__).parents[2] / "packaging" / "binary"


@pytest.fixture(scope="session")
def script():
    """Return a function that imports one of them by name."""
    sys.path.insert(0, str(BINARY))
    yield importlib.import_module
    sys.path.remove(str(BINARY))
