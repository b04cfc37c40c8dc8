"""Access to the modules that build the guide, which are outside the package."""

import importlib
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "packaging" / "guide"


@pytest.fixture(scope="session")
def module():
    """Return a function that imports a module from packaging/guide by name."""
    sys.path.insert(0, str(GUIDE))
    yield importlib.import_module
    sys.path.remove(str(GUIDE))


@pytest.fixture(scope="session")
def corpus(module):
    return module("corpus").Corpus(module("shape").GUIDE.size)
