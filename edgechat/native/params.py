"""How a model is loaded: what decides where llama.cpp allocates how much. Nothing native is imported here."""

from __future__ import annotations

from typing import Literal, Self

import msgspec

CacheType = Literal["f16", "q8_0", "q4_0"]
AttentionKind = Literal["flash", "plain"]
N_CANDIDATES = 128
"""Logits of a row that a device of another machine sends; makers of models recommend a top-k of 20 to 64."""
CANDIDATES_FROM = 8 * N_CANDIDATES
"""Tokens of a vocabulary of which all logits would take much longer to send."""
_LINE = 16
"""Numbers (int32) in a cache line."""


class LoadParams(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a model and its context that edgechat sets; the rest are llama.cpp's defaults."""

    context: int
    """Cells of the KV cache, shared by all sequences; llama.cpp rounds them up to a multiple of 256."""
    cache_type: CacheType = "f16"
    threads: int = 1
    n_batch: int = 512
    """Maximum number of tokens in a call."""
    n_ubatch: int = 512
    """Tokens in a micro-batch; the compute buffers grow with it."""
    n_seq_max: int = 4
    n_outputs_max: int = 4
    """Rows of logits of one call; 0 means n_batch, else not less than n_seq_max, or llama.cpp aborts."""
    n_rs_seq: int = 0
    """Snapshots of a recurrent state, for each sequence."""
    flash_attention: bool = True
    embeddings: bool = False
    """Make an embedding of each sequence of a call instead of logits."""
    reranks: bool = False
    """With `embeddings`: the model's classification head makes a score of each sequence, and no vector."""
    devices: tuple[str, ...] = ()
    """llama.cpp's names of the accelerators to use, the first layers' first, or 'MLX' for that of an Apple
    processor; none: the processor alone."""
    split: tuple[int, ...] = ()
    """Layers on each of `devices`; the last layers of the model, and what makes logits counts as one more."""
    experts_in_ram: int = 0
    """Number of first layers whose experts (MoE) stay in RAM."""
    rpc: tuple[str, ...] = ()
    """Servers (host:port) whose devices are among `devices`."""
    mtp: bool = False
    """Load the layers that predict further tokens (MTP), and a context of their own to draft with."""

    @property
    def n_rows(self) -> int:
        """Rows of logits that there is room for; 0 means n_batch. With plain attention a multiple of 16.

        llama.cpp keeps a number (int32) for each before the matrices of a call. If those fill no whole cache
        lines, all of these lie across lines, and long prompts are read up to 1.3 times as slowly (AVX-512).
        """
        return self.n_outputs_max if self.flash_attention else -(-self.n_outputs_max // _LINE) * _LINE

    @property
    def attention(self) -> AttentionKind:
        """How the context computes attention."""
        return "flash" if self.flash_attention else "plain"

    @property
    def gpu_layers(self) -> int:
        """Layers on accelerators."""
        return sum(self.split)

    def of_head(self) -> Self:
        """Return the parameters of the context in which the model's own head drafts: a token at a time."""
        return msgspec.structs.replace(
            self, n_batch=self.n_ubatch, n_outputs_max=self.n_seq_max, n_rs_seq=0, embeddings=False
        )

    @classmethod
    def of(cls, other: LoadParams) -> Self:
        """Return the parameters alone of what has more: a LoadPlan's."""
        return cls(**{name: getattr(other, name) for name in cls.__struct_fields__})


_MAPPED = "_Mapped"


class Buffer(msgspec.Struct, frozen=True):
    """The contents of the buffers of one type, in bytes."""

    name: str
    """llama.cpp's name of the type: 'CPU', 'CPU_REPACK', 'CUDA0', ..."""
    is_host: bool
    """Whether it is in RAM."""
    weights: int = 0
    cache: int = 0
    compute: int = 0
    device: str = "CPU"
    """The device whose memory it takes: 'CPU', also for what is pinned in RAM for a GPU, 'CUDA0', ..."""

    @property
    def total(self) -> int:
        """Bytes of all three."""
        return self.weights + self.cache + self.compute


class Breakdown(msgspec.Struct, frozen=True):
    """What a model with one context takes."""

    buffers: tuple[Buffer, ...]
    output: int
    """Bytes of the rows of logits, in the machine's own memory; llama.cpp's breakdown leaves them out."""
    n_ctx: int
    """Cells of the cache, after llama.cpp's rounding."""

    @property
    def weights(self) -> int:
        """Bytes of the weights, on all devices."""
        return sum(buffer.weights for buffer in self.buffers)

    @property
    def cache(self) -> int:
        """Bytes of keys, values and recurrent states, on all devices."""
        return sum(buffer.cache for buffer in self.buffers)

    @property
    def compute(self) -> int:
        """Bytes to compute with and to hand out logits, on all devices."""
        return sum(buffer.compute for buffer in self.buffers) + self.output


def with_head(model: tuple[Buffer, ...], head: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
    """Return the buffers of a model and its context with those of its head, whose weights are the same."""
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
    """Say whether the weights in it are pages of the file."""
    return buffer.name.endswith(_MAPPED)


def counted_once(buffers: tuple[Buffer, ...], weights: int) -> tuple[Buffer, ...]:
    """Return the buffers of a load that maps its file, as they would be without the mapping.

    A mapped range holds the pages of all tensors between its first and its last, those among them that other
    buffers hold a copy of. The kernel takes such pages back when it needs them, so they count once.
    weights: bytes of all tensors of the file.
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
"""They can draft with a layer of their own (LLM_GRAPH_TYPE_DECODER_MTP), and with no more than one."""
CHAINED = {"hy_v3", "mimo2", "step35"}
"""They can with any number, each of which predicts one token further than the one before."""
HANDS_OUT_ALL = ONE_LAYER - {"deepseek4", "qwen3next"}
"""Their heads hand out the hidden states of all tokens of a call, the others of those alone whose logits are
wanted. To ask one for what another gives returns wrong rows, or aborts."""
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
"""They hand out what goes into a layer, which EAGLE-3 reads."""
EAGLE_LAYERS = 3
"""Layers of the target that EAGLE-3 reads."""
