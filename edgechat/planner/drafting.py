"""Whether drafts are possible for a model, what they cost, and which model can draft for which.

Rejected drafts are undone. Cells of a KV cache are simply removed; a recurrent state is restored from a
snapshot, which llama.cpp keeps for some architectures, and which takes as much memory as the state. For MLX
the state before a call is kept, and the accepted tokens of the call are computed again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgechat.base.text import mebibytes
from edgechat.models.formats import mtp
from edgechat.models.formats.header import Format, GgufArray, ModelHeader
from edgechat.planner.estimate.memory import recurrent_bytes

AUTO, NONE, NGRAM, MTP = "auto", "none", "ngram", "mtp"
"""Values of `draft` that name no model."""
DRAFTED = 15
"""Maximum number of drafted tokens in a batch."""
_SMALL_STATE = 4 * 2**20
"""Maximum size in bytes of a sequence's recurrent state that counts as small."""
_SNAPSHOTS, _FEW_SNAPSHOTS = 8, 3
"""Of a small state, and of a large one."""
_SHARE = 2
"""A draft model that was not requested is smaller than the target by more than this factor."""
_MAX_PADDING = 128
"""Tokens by which the sizes of two vocabularies may differ: some are padded."""

# As llama.cpp spells and counts them (llama-arch.cpp).
_TAKES_BACK = {
    "bailingmoe3",
    "deepseek4",
    "glm5-next",
    "kimi-k3",
    "lfm2",
    "lfm2moe",
    "nemotron_h",
    "nemotron_h_moe",
    "qwen35",
    "qwen35moe",
    "qwen4exp",
}
"""Recurrent architectures with snapshots."""
_RECURRENT = _TAKES_BACK | {
    "arwkv7",
    "falcon-h1",
    "granitehybrid",
    "jamba",
    "kimi-linear",
    "mamba",
    "mamba2",
    "minimax-01",
    "plamo2",
    "qwen3next",
    "rwkv6",
    "rwkv6qwen2",
    "rwkv7",
}
_TOKENIZER_KINDS = {"hybriddna": "gpt2", "whitespace": "gpt2", "gemma4": "gpt2"}
"""Tokenizers that are of another one's kind."""
_UNKNOWN_TOKENIZERS = ("none", "no_vocab")


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """What drafts for a model take, whatever makes them."""

    drafted: int = 0
    """Tokens that one call may verify; 0: no drafts."""
    n_rs_seq: int = 0
    """Snapshots of the recurrent state of each sequence, which is how many tokens can be undone."""
    mtp: bool = False
    """Whether the model's own layers (MTP) draft."""
    why_not: str = ""
    """Why there are no drafts; a sentence."""


NOBODY = DraftCosts()
KINDS: dict[Format, str] = {"gguf": "a GGUF file", "mlx": "an MLX model"}
"""What users call a model of each format."""


def asks_for_drafts(wish: str | None) -> bool:
    """Return whether drafts were explicitly requested."""
    return wish not in (None, AUTO, NONE)


def drafting(header: ModelHeader, wish: str) -> DraftCosts:
    """Return what drafts for this model take, all but those of its own layers (see `drafting_with_head`).

    wish: 'auto', 'none', 'ngram', 'mtp' or a draft model.
    """
    if header.makes_embeddings:
        return NOBODY
    if wish == NONE:
        return DraftCosts(why_not="Drafting is off, as requested.")
    if header.format == "mlx" or not is_recurrent(header):
        return DraftCosts(DRAFTED)
    if header.architecture not in _TAKES_BACK:
        return DraftCosts(
            why_not="Drafting is not possible: the recurrent layers cannot undo a rejected draft."
        )
    state = recurrent_bytes(header, 1)
    if 0 < state <= _SMALL_STATE:
        return DraftCosts(DRAFTED, _SNAPSHOTS)
    if wish not in (AUTO, MTP):
        return DraftCosts(DRAFTED, _FEW_SNAPSHOTS)
    size = f", {mebibytes(state)} each" if state else ""
    return DraftCosts(
        why_not="Drafting is off: to undo rejected drafts, copies of the recurrent state would be "
        f"needed{size}. To use them: --draft ngram"
    )


def drafting_with_head(header: ModelHeader, wish: str, *, beside: bool = False) -> DraftCosts:
    """Return what drafts take with those of the model's own layers; none, and why, if it has no such layers.

    beside: they are in a file of their own, if not in the model's.
    """
    if wish not in (AUTO, MTP) or header.makes_embeddings:
        return NOBODY
    why_not = mtp.why_no_drafts(header)
    others = drafting(header, NGRAM)
    if not others.drafted or (why_not and not beside):
        return DraftCosts(why_not=why_not or others.why_not)
    return replace(others, mtp=not why_not)


def has_large_state(header: ModelHeader) -> bool:
    """Return whether the recurrent state of a sequence takes much memory."""
    return recurrent_bytes(header, 1) > _SMALL_STATE


def is_recurrent(header: ModelHeader) -> bool:
    """Return whether some layers keep a state that cannot simply be truncated."""
    listed = header.shape_value("attention.recurrent_layers")
    any_listed = isinstance(listed, GgufArray) and any(listed.values or ())
    return header.architecture in _RECURRENT or any_listed or recurrent_bytes(header, 1) > 0


def misfit(target: ModelHeader, draft: ModelHeader) -> str:
    """Return why `draft` cannot draft for `target`, as far as headers tell; '' if it can.

    The tokens themselves are compared once both are loaded.
    """
    if draft.format != target.format:
        return f"it is {KINDS[draft.format]}, and the target is {KINDS[target.format]}"
    if draft.weights_bytes >= target.weights_bytes:
        return "it is not smaller"
    if is_recurrent(draft):
        return "its recurrent layers cannot undo a rejected draft"
    kinds = {_tokenizer_kind(header) for header in (target, draft)} - {""}
    if len(kinds) > 1:
        return "its tokenizer is of a different type"
    if abs(target.vocab_size - draft.vocab_size) > _MAX_PADDING:
        return f"its vocabulary has {draft.vocab_size} tokens, not {target.vocab_size}"
    for name in ("bos", "eos"):
        if not _has_same_token(target, draft, name):
            return f"its {name.upper()} token is different"
    return ""


def is_much_smaller(draft: ModelHeader, target: ModelHeader) -> bool:
    """Return whether a model is small enough to be worthwhile as a draft model."""
    return draft.weights_bytes * _SHARE < target.weights_bytes


def _tokenizer_kind(header: ModelHeader) -> str:
    """Return the kind of tokenizer; '' where the header does not say."""
    name = header.text("tokenizer.ggml.model") or ""
    return "" if name in _UNKNOWN_TOKENIZERS else _TOKENIZER_KINDS.get(name, name)


def _has_same_token(target: ModelHeader, draft: ModelHeader, name: str) -> bool:
    """Return whether both models add the same BOS or EOS token; True where a header does not say."""
    adds = [header.metadata.get(f"tokenizer.ggml.add_{name}_token") for header in (target, draft)]
    if None in adds:
        return True
    ids = {header.metadata.get(f"tokenizer.ggml.{name}_token_id") for header in (target, draft)}
    return adds[0] == adds[1] and (not adds[0] or len(ids - {None}) < 2)
