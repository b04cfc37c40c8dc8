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
