"""Parameters for loading a model, the memory that a load takes, and which architectures can draft.

Everything here is plain data. Nothing native is imported, so front ends can use this module.
"""

from __future__ import annotations

from typing import Literal, Self

import msgspec

CacheType = Literal["f16", "q8_0", "q4_0"]
AttentionKind = Literal["flash", "plain"]
N_CANDIDATES = 128
"""How many logits per row a remote device sends. Model makers recommend a top-k of 20 to 64."""
CANDIDATES_FROM = 8 * N_CANDIDATES
"""The vocabulary size above which sending all logits would take much longer."""
_LINE = 16
"""How many int32 numbers fit into a cache line."""


class AdapterUse(msgspec.Struct, frozen=True):
    """A LoRA adapter and its scale."""

    path: str
    """A GGUF file, or a folder saved by PEFT."""
    scale: float = 1.0
    """1 applies the adapter as trained; 0 does not apply it."""


class LoadParams(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters for a model and its context; all others keep llama.cpp's defaults."""

    context: int
    """Number of cells in the KV cache, shared by all sequences. llama.cpp rounds up to a multiple of 256."""
    cache_type: CacheType = "f16"
    threads: int = 1
    n_batch: int = 512
    """Maximum number of tokens in a call."""
    n_ubatch: int = 512
    """Number of tokens in a micro-batch. The compute buffers grow with it."""
    n_seq_max: int = 4
    n_outputs_max: int = 4
    """Maximum rows of logits in a call; 0 means n_batch. Any other value must be at least n_seq_max, or
    llama.cpp aborts.
    """
    n_rs_seq: int = 0
    """Number of snapshots of the recurrent state per sequence."""
    flash_attention: bool = True
    embeddings: bool = False
    """Whether to compute an embedding for each sequence in a call instead of logits."""
    reranks: bool = False
    """Whether the model's classification head scores each sequence instead. Requires `embeddings`."""
    devices: tuple[str, ...] = ()
    """llama.cpp's names for the accelerators to use, in layer order, or 'MLX' for Apple's. If empty, only
    the CPU is used.
    """
    split: tuple[int, ...] = ()
    """Number of layers on each of `devices`; together they are the model's last layers. The output tensors
    count as one more layer.
    """
    experts_in_ram: int = 0
    """Number of layers, counting from the first, whose experts (MoE) stay in RAM."""
    rpc: tuple[str, ...] = ()
    """RPC servers (host:port) whose devices are among `devices`."""
    mtp: bool = False
    """Whether to load the layers that predict further tokens (MTP), with their own context for drafting."""

    @property
    def n_rows(self) -> int:
        """Rows of logits to reserve space for; 0 means n_batch. With plain attention, a multiple of 16.

        llama.cpp stores an int32 per row before a call's matrices. Unless these numbers fill whole cache
        lines, all matrices are unaligned, and reading a long prompt takes up to 1.3 times as long (AVX-512).
        """
        return self.n_outputs_max if self.flash_attention else -(-self.n_outputs_max // _LINE) * _LINE

    @property
    def attention(self) -> AttentionKind:
        """The kind of attention that the context computes."""
        return "flash" if self.flash_attention else "plain"

    @property
    def gpu_layers(self) -> int:
        """Number of layers on accelerators."""
        return sum(self.split)

    def of_head(self) -> Self:
        """Return parameters for the context in which the model's head drafts, one token at a time."""
        return msgspec.structs.replace(
            self, n_batch=self.n_ubatch, n_outputs_max=self.n_seq_max, n_rs_seq=0, embeddings=False
        )

    @classmethod
    def of(cls, other: LoadParams) -> Self:
        """Return the load parameters alone, given an instance of a subclass such as LoadPlan."""
        return cls(**{name: getattr(other, name) for name in cls.__struct_fields__})


_MAPPED = "_Mapped"


class Buffer(msgspec.Struct, frozen=True):
    """All buffers of one type taken together. Sizes are in bytes."""

    name: str
    """llama.cpp's name for the buffer type: 'CPU', 'CPU_REPACK', 'CUDA0', ..."""
    is_host: bool
    """Whether the buffer is in RAM."""
    weights: int = 0
    cache: int = 0
    compute: int = 0
    device: str = "CPU"
    """The device whose memory it uses, such as 'CUDA0'. 'CPU' includes RAM that is pinned for a GPU."""

    @property
    def total(self) -> int:
        """The sum of the three sizes, in bytes."""
        return self.weights + self.cache + self.compute


class Breakdown(msgspec.Struct, frozen=True):
    """The memory used by a model with one context."""

    buffers: tuple[Buffer, ...]
    output: int
    """Bytes for rows of logits, in RAM; llama.cpp's breakdown omits them."""
    n_ctx: int
    """Number of cells in the cache, as rounded by llama.cpp."""

    @property
    def weights(self) -> int:
        """Bytes of weights, on all devices."""
        return sum(buffer.weights for buffer in self.buffers)

    @property
    def cache(self) -> int:
        """Bytes of keys, values and recurrent states, on all devices."""
        return sum(buffer.cache for buffer in self.buffers)

    @property
    def compute(self) -> int:
        """Bytes for computing and for returning logits, on all devices."""
        return sum(buffer.compute for buffer in self.buffers) + self.output


def with_head(model: tuple[Buffer, ...], head: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
    """Merge the buffers of a model with those of its head, which uses the model's weights."""
    merged = {buffer.name: buffer for buffer in model}
    for buffer in head:
        old = merged.get(buffer.name, Buffer(buffer.name, buffer.is_host, device=buffer.device))
        merged[buffer.name] = msgspec.structs.replace(
            old,
            weights=max(old.weights, buffer.weights),
            cache=old.cache + buffer.cache,
            compute=old.compute + buffer.compute,
        )
    return tuple(sorted(merged.values(), key=lambda buffer: buffer.name))


def is_mapped(buffer: Buffer) -> bool:
    """Return True if a buffer's weights are pages of the mapped file."""
    return buffer.name.endswith(_MAPPED)


def counted_once(buffers: tuple[Buffer, ...], weights: int) -> tuple[Buffer, ...]:
    """Return a load's buffers as if the file were not memory-mapped.

    A mapped range contains all pages from its first tensor to its last, including those of tensors that are
    also copied to other buffers. The kernel reclaims such pages when it needs memory, so they are counted
    only once. weights: the total size of all tensors in the file.
    """
    copied = sum(buffer.weights for buffer in buffers if not is_mapped(buffer))
    merged: dict[str, Buffer] = {}
    for buffer in buffers:
        name = buffer.name.removesuffix(_MAPPED)
        taken = min(buffer.weights, max(0, weights - copied)) if is_mapped(buffer) else buffer.weights
        old = merged.get(name, Buffer(name, buffer.is_host, device=buffer.device))
        merged[name] = msgspec.structs.replace(
            old,
            weights=old.weights + taken,
            cache=old.cache + buffer.cache,
            compute=old.compute + buffer.compute,
        )
    return tuple(merged.values())


ONE_LAYER = {
    "bailingmoe3",
    "cohere2moe",
    "deepseek2",
    "deepseek32",
    "deepseek4",
    "glm-dsa",
    "glm4moe",
    "nemotron_h_moe",
    "qwen35",
    "qwen35moe",
    "qwen3next",
}
"""Architectures with at most one extra layer for drafting (LLM_GRAPH_TYPE_DECODER_MTP)."""
CHAINED = {"hy_v3", "mimo2", "step35"}
"""Architectures that draft with any number of layers, each of which predicts one token further ahead."""
HANDS_OUT_ALL = ONE_LAYER - {"deepseek4", "qwen3next"}
"""Architectures whose heads return the hidden states of all tokens in a call. Other heads return them only
for tokens whose logits are wanted. Confusing the two kinds yields wrong rows or aborts the process.
"""
HANDS_OUT_INPUTS = {
    "bailingmoe3",
    "gemma4",
    "gpt-oss",
    "lfm2",
    "lfm2moe",
    "llama",
    "mimo2",
    "minimax-m2",
    "nemotron_h",
    "nemotron_h_moe",
    "qwen3",
    "qwen35",
    "qwen35moe",
    "qwen3moe",
    "qwen3next",
}
"""Architectures that can return the inputs of their layers, which EAGLE-3 reads."""
EAGLE_LAYERS = 3
"""How many of the target's layers EAGLE-3 reads."""
