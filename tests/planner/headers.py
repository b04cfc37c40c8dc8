"""Model headers made from numbers alone, and machines with a given amount of free memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from edgechat.device.cpu import Core, Cpu
from edgechat.device.memory import Memory
from edgechat.device.profile import DeviceProfile
from edgechat.device.speed import AttentionCurve, AttentionShape, DeviceSpeed, attention_name
from edgechat.models.formats.header import GgufArray, ModelHeader, ModelTensor, Value
from edgechat.models.formats.projector import projector_of
from edgechat.models.formats.quants import GgmlType
from edgechat.models.local.resolve import ResolvedModel
from edgechat.native.params import Breakdown, CacheType, LoadParams
from edgechat.planner.companions import ProjectorFile
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.estimate.memory import layer_cache_bytes
from edgechat.planner.plan import LoadPlan
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
    """Return a model with the vocabulary of `tiny()` and less than a quarter of its weights."""
    shape = DENSE.sized(n_layers=1, n_embd=16, n_ff=32, n_heads=2, n_kv_heads=1)
    return build(Spec(shape=shape, name="little"))


def wide() -> Path:
    """Return a model whose cache takes 8 KiB per token, for up to 32,768 tokens."""
    shape = DENSE.sized(n_layers=4, n_heads=8, n_kv_heads=8, head_dim=64, context_length=32768)
    return build(Spec(shape=shape, name="wide"))


def header(
    numbers: dict[str, int], weights: int = 4 * GIB, arch: str = "llama", **changes: int
) -> ModelHeader:
    """Return the header of a model with these numbers; in the names of `changes`, __ stands for a dot."""
    metadata: dict[str, Value] = {"general.architecture": arch}
    for key, value in (numbers | changes).items():
        metadata[f"{arch}.{key.replace('__', '.')}"] = value
    tensor = ModelTensor("all", (weights,), GgmlType.Q8_0, 0, weights)
    return ModelHeader("a.gguf", 3, metadata, (tensor,), 0, 32, weights)


def projector_file(
    vision: str = "gemma3",
    audio: str = "",
    *,
    embd: int = 1152,
    ff: int = 4304,
    layers: int = 27,
    image_size: int = 896,
    patch: int = 14,
    gated: bool = False,
    weights: int = 0,
    **more: int,
) -> ProjectorFile:
    """Return a projector made from numbers; `more` apply to the image encoder, with __ for a dot.

    weights: its size in bytes; by default, that of its layers in F16.
    """
    metadata: dict[str, Value] = {"general.architecture": "clip"}
    halves = GgufArray("float32", 3, (0.5, 0.5, 0.5))
    for name, kind in (("vision", vision), ("audio", audio)):
        if kind:
            prefix = f"clip.{name}."
            metadata |= {f"clip.has_{name}_encoder": True, prefix + "projector_type": kind}
            numbers = {"embedding_length": embd, "feed_forward_length": ff, "block_count": layers}
            metadata |= {prefix + key: value for key, value in numbers.items()}
            metadata |= {prefix + "projection_dim": 4096, prefix + "attention.head_count": 16}
    if vision:
        numbers = {"image_size": image_size, "patch_size": patch}
        numbers |= {key.replace("__", "."): value for key, value in more.items()}
        metadata |= {f"clip.vision.{key}": value for key, value in numbers.items()}
        metadata |= {"clip.vision.image_mean": halves, "clip.vision.image_std": halves}
    n = weights // 2 or layers * (4 * embd * embd + (3 if gated else 2) * embd * ff)
    name = f"{'v' if vision else 'a'}.blk.0.all.weight"
    tensors = [ModelTensor(name, (n,), GgmlType.F16, 0, 2 * n)]
    if gated:
        tensors.append(ModelTensor("v.blk.0.ffn_gate.weight", (1,), GgmlType.F16, 2 * n, 2))
    header = ModelHeader("mmproj.gguf", 3, metadata, tuple(tensors), 0, 32, 2 * n)
    return ProjectorFile("mmproj.gguf", projector_of(header), "/models/mmproj.gguf")


def machine(free: int, n_cores: int = 4) -> DeviceProfile:
    """Return a machine with `free` bytes of available memory."""
    cores = tuple(Core((number,)) for number in range(n_cores))
    return DeviceProfile(Cpu("x", cores, frozenset(range(n_cores))), Memory(2 * free, free))


def dry_run(found: ModelHeader, loads: Sequence[LoadParams]) -> list[Breakdown]:
    """Return what loads of this model would take, according to llama.cpp."""
    with DryRun() as run:
        run.show(found)
        return [run.ask(one) for one in loads]


def cache_bytes(found: ModelHeader, context: int, cache_type: CacheType, **more: int) -> int:
    """Return the bytes of all layers' keys and values, by formula."""
    return sum(layer_cache_bytes(found, context, cache_type, **more))


def weights_of(plan: LoadPlan) -> int:
    """Return the bytes of a plan's weights in all memories."""
    return sum(memory.weights_bytes for memory in plan.memory)


def cache_of(plan: LoadPlan) -> int:
    """Return the bytes of a plan's cache in all memories."""
    return sum(memory.cache_bytes for memory in plan.memory)


def headed(model: ModelHeader) -> ModelHeader:
    """Return a header with one more layer, a copy of the last, that predicts a second token (MTP)."""
    arch, n, embd = model.architecture, model.n_layers, model.embedding_length
    last = [tensor for tensor in model.tensors if tensor.name.startswith(f"blk.{n - 1}.")]
    more = [replace(tensor, name=tensor.name.replace(f"blk.{n - 1}.", f"blk.{n}.")) for tensor in last]
    square = embd * 2 * embd
    more += [
        ModelTensor(f"blk.{n}.nextn.eh_proj.weight", (2 * embd, embd), GgmlType.Q8_0, 0, square // 32 * 34),
        ModelTensor(f"blk.{n}.nextn.enorm.weight", (embd,), GgmlType.F32, 0, 4 * embd),
        ModelTensor(f"blk.{n}.nextn.hnorm.weight", (embd,), GgmlType.F32, 0, 4 * embd),
        ModelTensor(f"blk.{n}.nextn.shared_head_norm.weight", (embd,), GgmlType.F32, 0, 4 * embd),
    ]
    metadata = model.metadata | {f"{arch}.block_count": n + 1, f"{arch}.nextn_predict_layers": 1}
    size = model.file_size + sum(tensor.n_bytes for tensor in more)
    return replace(model, metadata=metadata, tensors=(*model.tensors, *more), file_size=size)


def attending(
    speed: DeviceSpeed,
    shape: AttentionShape,
    flash: float = 4e-6,
    plain: float = 1e-6,
    *,
    reading: float = 2e-5,
) -> DeviceSpeed:
    """Return a speed with these seconds per layer and cell, for one token; reading: for 512 tokens."""
    curves = {
        attention_name(shape, cache_type, kind): AttentionCurve(
            (0.0, 0.0, 0.0), (seconds, 4 * seconds, max(reading, seconds))
        )
        for cache_type, kind, seconds in (
            ("f16", "flash", flash),
            ("f16", "plain", plain),
            ("q8_0", "flash", flash),
        )
    }
    return msgspec.structs.replace(speed, attentions=speed.attentions | curves)
