"""pytest plugin for mutation testing: no mutant is worth the search for its smallest example."""

import pytest
from hypothesis import Phase, settings


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Replace the profile that tests/conftest.py has loaded."""
    settings.register_profile("mutation", phases=[Phase.explicit, Phase.generate], database=None)
    settings.load_profile("mutation")
