"""pytest plugin for mutation testing that saves time by not shrinking failing examples."""

import pytest
from hypothesis import Phase, settings


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Replace the Hypothesis profile that tests/conftest.py loads."""
    settings.register_profile("mutation", phases=[Phase.explicit, Phase.generate], database=None)
    settings.load_profile("mutation")
