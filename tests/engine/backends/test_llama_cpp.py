"""Tests for llama.cpp only; those for all backends are in test_base.py."""

import pytest

from edgechat.base.errors import LoadFailed
from tests.engine.runtimes import Runtime, feed, load, plan, some
from tests.kit.corrupt import unknown_architecture

LLAMA_CPP = Runtime("llama.cpp")


def test_a_windowed_model_computes_micro_batches_one_by_one():
    for kind, size in (("windowed", 64), ("dense", 512)):
        backend = load(plan(LLAMA_CPP.model(kind)))
        assert backend.n_batch == size
        backend.close()


def test_flash_attention_makes_other_states():
    formats = set()
    for flash_attention in (False, True):
        backend = load(plan(LLAMA_CPP.wide(), flash_attention=flash_attention))
        formats.add(backend.state_format)
        backend.close()
    assert len(formats) == 2


@pytest.mark.parametrize("kind", ["dense", "windowed", "hybrid"])
def test_a_state_of_flash_attention_is_none_of_plain_attention(kind):
    """Its values lie otherwise: where llama.cpp does not refuse it, its mark does."""
    backends = [load(plan(LLAMA_CPP.model(kind), flash_attention=flash)) for flash in (False, True)]
    try:
        one, other = backends
        feed(one, 0, 0, some(1, 200))
        assert one.state_format != other.state_format
        assert not other.restore(0, one.save(0), some(1, 200))
    finally:
        for backend in backends:
            backend.close()


def test_an_unknown_architecture_is_named(tmp_path):
    path = unknown_architecture(tmp_path / "strange.gguf")
    with pytest.raises(LoadFailed, match=r"cannot load strange\.gguf.*unknown model architecture"):
        load(plan(path))
