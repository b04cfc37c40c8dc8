"""pytest plugin for mutation testing: spends no time on shrinking failing examples."""

import pytest
from hypothesis import Phase, settings


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Replace the profile loaded by tests/conftest.py."""
    settings.register_profile("mutation", phases=[Phase.explicit, Phase.generate], database=None)
    settings.load_profile("mutation")
