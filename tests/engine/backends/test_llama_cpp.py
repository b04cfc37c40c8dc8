"""What is llama.cpp's alone; what every backend does is in test_base.py."""

import pytest

from edgechat.base.errors import LoadFailed
from tests.engine.runtimes import Runtime, load, plan
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


def test_an_unknown_architecture_is_named(tmp_path):
    path = unknown_architecture(tmp_path / "strange.gguf")
    with pytest.raises(LoadFailed, match=r"cannot load strange\.gguf.*unknown model architecture"):
        load(plan(path))
