"""A server whose models replay scripts."""

import pytest

from tests.server.fakes import FakeModels, serving


@pytest.fixture
def models():
    return FakeModels()


@pytest.fixture
async def url(models):
    async with serving(models) as url:
        yield url
