"""Headers of models by their numbers alone, and machines with so much free memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgechat.device.cpu import Core, Cpu
from edgechat.device.memory import Memory
from edgechat.device.profile import DeviceProfile
from edgechat.models.formats.header import ModelHeader, ModelTensor, Value
from edgechat.models.formats.quants import GgmlType
from edgechat.models.local.resolve import ResolvedModel
from edgechat.native.buffers import Breakdown
from edgechat.native.params import CacheType, LoadParams
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.estimate.memory import layer_cache_bytes
from tests.kit import DENSE, Spec, build

GIB = 2**30

LLAMA_8B: dict[str, int] = {
    "block_count": 32,
    "embedding_length": 4096,
    "feed_forward_length": 14336,
    "context_length": 131072,
    "attention.head_count": 32,
    "attention.head_count_kv": 8,
    "vocab_size": 128256,
}
GEMMA_12B: dict[str, int] = {
    "block_count": 48,
    "embedding_length": 3840,
    "feed_forward_length": 15360,
    "context_length": 131072,
    "attention.head_count": 16,
    "attention.head_count_kv": 8,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "attention.sliding_window": 1024,
    "vocab_size": 262144,
}
QWEN3_30B: dict[str, int] = {
    "block_count": 48,
    "embedding_length": 2048,
    "feed_forward_length": 6144,
    "expert_feed_forward_length": 768,
    "expert_count": 128,
    "expert_used_count": 8,
    "context_length": 40960,
    "attention.head_count": 32,
    "attention.head_count_kv": 4,
    "attention.key_length": 128,
    "attention.value_length": 128,
    "vocab_size": 151936,
}
QWEN35_4B: dict[str, int] = {
    "block_count": 32,
    "embedding_length": 2560,
    "feed_forward_length": 9216,
    "context_length": 262144,
    "attention.head_count": 16,
    "attention.head_count_kv": 4,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "full_attention_interval": 4,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 4096,
    "ssm.state_size": 128,
    "ssm.group_count": 16,
    "vocab_size": 248320,
}

FOUND = ResolvedModel(Path("/models/a.gguf"), "a")


def little() -> Path:
    """Return a model of the vocabulary of `tiny()`, with less than a quarter of its weights."""
    shape = DENSE.sized(n_layers=1, n_embd=16, n_ff=32, n_heads=2, n_kv_heads=1)
    return build(Spec(shape=shape, name="little"))


def wide() -> Path:
    """Return a model whose cache takes 8 KiB a token, of up to 32,768."""
    shape = DENSE.sized(n_layers=4, n_heads=8, n_kv_heads=8, head_dim=64, context_length=32768)
    return build(Spec(shape=shape, name="wide"))


def header(
    numbers: dict[str, int], weights: int = 4 * GIB, arch: str = "llama", **changes: int
) -> ModelHeader:
    """Return the header of a model with these numbers; `changes` are named with __ for a dot."""
    metadata: dict[str, Value] = {"general.architecture": arch}
    for key, value in (numbers | changes).items():
        metadata[f"{arch}.{key.replace('__', '.')}"] = value
    tensor = ModelTensor("all", (weights,), GgmlType.Q8_0, 0, weights)
    return ModelHeader("a.gguf", 3, metadata, (tensor,), 0, 32, weights)


def machine(free: int, n_cores: int = 4) -> DeviceProfile:
    """Return a machine with `free` bytes of memory to be had."""
    cores = tuple(Core((number,)) for number in range(n_cores))
    return DeviceProfile(Cpu("x", cores, frozenset(range(n_cores))), Memory(2 * free, free))


def dry_run(found: ModelHeader, loads: Sequence[LoadParams]) -> list[Breakdown]:
    """Return what loads of this model would take, by llama.cpp's account."""
    with DryRun() as run:
        run.show(found)
        return [run.ask(one) for one in loads]


def cache_bytes(found: ModelHeader, context: int, cache_type: CacheType, **more: int) -> int:
    """Return the bytes of the keys and values of all layers, by formula."""
    return sum(layer_cache_bytes(found, context, cache_type, **more))
