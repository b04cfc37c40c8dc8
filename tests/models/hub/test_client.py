"""Whether the hub can be reached, and how fast it is, in one short request."""

import time

import pytest

from edgechat.models.catalogue import CatalogueEntry
from edgechat.models.hub.client import HubReach, probe_hub
from tests.hub import Fault

pytestmark = pytest.mark.slow

FILE = CatalogueEntry(
    name="tiny",
    description="x",
    licence="MIT",
    repo="owner/tiny-GGUF",
    file="tiny-{quant}.gguf",
    quant="Q8_0",
)


def test_the_rate_is_measured(hub):
    hub.add("owner/tiny-GGUF", {"tiny-Q8_0.gguf": bytes(8 << 20)})
    hub.fail("store", Fault(pause=0.02, piece=1 << 16))
    found = probe_hub(FILE)
    assert found.problem == ""
    assert found.rate is not None
    assert found.rate < (1 << 16) / 0.02 * 1.2
    assert [seen.range for seen in hub.requests("store")] == [(0, (4 << 20) - 1)]


def test_a_small_sample_measures_nothing(hub):
    hub.add("owner/tiny-GGUF", {"tiny-Q8_0.gguf": bytes(100_000)})
    assert probe_hub(FILE) == HubReach()


def test_a_hub_that_refuses_can_be_reached(hub):
    assert probe_hub(FILE) == HubReach()  # it has no such repository


def test_a_connection_that_is_cut_later_is_one(hub):
    hub.add("owner/tiny-GGUF", {"tiny-Q8_0.gguf": bytes(8 << 20)})
    hub.fail("store", Fault(cut_after=100_000))
    assert probe_hub(FILE).problem == ""


def test_a_hub_that_is_not_there(hub):
    hub.stop()
    found = probe_hub(FILE)
    assert found.rate is None
    assert found.problem.startswith("127.0.0.1 is not reachable: ")


def test_a_silent_hub_is_waited_for_only_briefly(hub):
    hub.fail("resolve", Fault(wait=30))
    began = time.monotonic()
    assert probe_hub(FILE, seconds=0.5).problem.startswith("127.0.0.1 is too slow")
    assert time.monotonic() - began < 10  # the hub would answer after 30


def test_the_login_page_of_a_network_is_no_hub(hub):
    hub.fail("resolve", Fault(status=302, headers={"Location": "http://169.254.1.1/login"}))
    assert "redirects" in probe_hub(FILE).problem
