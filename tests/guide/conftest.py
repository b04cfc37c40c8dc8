"""The modules that make the guide, which lie outside the package."""

import importlib
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "packaging" / "guide"


@pytest.fixture(scope="session")
def module():
    """Import a module of packaging/guide by its name."""
    sys.path.insert(0, str(GUIDE))
    yield importlib.import_module
    sys.path.remove(str(GUIDE))


@pytest.fixture(scope="session")
def corpus(module):
    return module("corpus").Corpus(module("shape").GUIDE.size)
