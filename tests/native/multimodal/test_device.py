"""A projector on a device: an RPC server's, which is one to llama.cpp like a GPU, on any machine."""

import numpy as np
import pytest

from edgechat.native.multimodal.projector import Cancelled, MediaChunk
from tests.kit.vision import COLOURS, KINDS, noisy, plain
from tests.native.multimodal.seer import Seer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=KINDS)
def seer(request, servers):
    """Load the text model and the projector onto the device."""
    addresses = tuple(server.address for server in servers)
    with Seer(request.param, devices=("RPC0",), split=(1,), rpc=addresses, device="RPC0") as seer:
        yield seer


def test_it_sees_there(seer):
    assert [seer.ask(plain(colour)) for colour in COLOURS] == list(COLOURS)


def test_it_is_left_and_cancelled_there(seer):
    chunk = next(one for one in seer.chunks(noisy("red")) if isinstance(one, MediaChunk))
    whole = seer.projector.encode(chunk)
    calls = []
    assert np.array_equal(
        seer.projector.encode(chunk, between=lambda: not calls.append(True), every=0.0), whole
    )
    assert len(calls) > 10
    with pytest.raises(Cancelled):
        seer.projector.encode(chunk, between=lambda: False, every=0.0)
    assert np.array_equal(seer.projector.encode(chunk), whole)
