"""Who may draft for a model: what its layers allow and what that takes, and which model fits which.

Tokens that were guessed wrongly are taken back. Cells of a cache are simply cut; a recurrent state goes back
to a snapshot of it, which llama.cpp keeps for some architectures, and each takes as much memory as the state;
for MLX the state before a call is kept, and what stands of the call is computed again.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgechat.base.text import mebibytes
from edgechat.models.formats.header import Format, GgufArray, ModelHeader
from edgechat.planner.estimate.memory import recurrent_bytes

AUTO, NONE, NGRAM = "auto", "none", "ngram"
"""Wishes that name no model."""
DRAFTED = 15
"""Tokens of a whole batch that are drafted at most before they are verified."""
_SMALL_STATE = 4 * 2**20
"""Bytes of a sequence's recurrent state that nobody misses."""
_SNAPSHOTS, _FEW_SNAPSHOTS = 8, 3
"""Of a small state, and of one that is large."""
_SHARE = 2
"""A model that drafts unasked is smaller than the target by more than so many times."""
_MORE = 128
"""Tokens that one of two vocabularies may have more: some are padded."""

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
_KINDS = {"hybriddna": "gpt2", "whitespace": "gpt2", "gemma4": "gpt2"}
"""Tokenizers that are of another one's kind."""
_UNSAID = ("none", "no_vocab")


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """What drafts for a model take, whoever makes them."""

    drafted: int = 0
    """Tokens that one call may verify; 0: nobody drafts."""
    n_rs_seq: int = 0
    """Snapshots of the recurrent state of each sequence: so many tokens can be taken back."""
    why_not: str = ""
    """Why nobody drafts; a sentence."""


NOBODY = DraftCosts()
KINDS: dict[Format, str] = {"gguf": "a GGUF file", "mlx": "an MLX model"}
"""What people call a model of each format."""


def asks_for_drafts(wish: str | None) -> bool:
    """Say whether someone asked for drafts who does not leave it to us."""
    return wish not in (None, AUTO, NONE)


def drafting(header: ModelHeader, wish: str) -> DraftCosts:
    """Return what drafts for this model take; wish: 'auto', 'none', 'ngram' or a model that drafts."""
    if header.makes_embeddings:
        return NOBODY
    if wish == NONE:
        return DraftCosts(why_not="Drafting is off, as requested.")
    if not is_recurrent(header):
        return DraftCosts(DRAFTED)
    if header.format == "mlx":
        return DraftCosts(DRAFTED)
    if header.architecture not in _TAKES_BACK:
        return DraftCosts(
            why_not="Drafting is not possible: the recurrent layers cannot undo a rejected draft."
        )
    state = recurrent_bytes(header, 1)
    if 0 < state <= _SMALL_STATE:
        return DraftCosts(DRAFTED, _SNAPSHOTS)
    if wish != AUTO:
        return DraftCosts(DRAFTED, _FEW_SNAPSHOTS)
    size = f", {mebibytes(state)} each" if state else ""
    return DraftCosts(
        why_not="Drafting is off: to undo rejected drafts, copies of the recurrent state would be "
        f"needed{size}. To use them: --draft ngram"
    )


def has_large_state(header: ModelHeader) -> bool:
    """Say whether the recurrent state of a sequence is large enough to be missed."""
    return recurrent_bytes(header, 1) > _SMALL_STATE


def is_recurrent(header: ModelHeader) -> bool:
    """Say whether some layers keep a state that cannot simply be cut."""
    listed = header.shape_value("attention.recurrent_layers")
    keeps = isinstance(listed, GgufArray) and any(listed.values or ())
    return header.architecture in _RECURRENT or keeps or recurrent_bytes(header, 1) > 0


def misfit(target: ModelHeader, draft: ModelHeader) -> str:
    """Return why one model cannot draft for another, as far as headers tell, as what is wrong with it; or ''.

    What their tokens are is compared once both are loaded.
    """
    if draft.format != target.format:
        return f"it is {KINDS[draft.format]}, and the target is {KINDS[target.format]}"
    if draft.weights_bytes >= target.weights_bytes:
        return "it is not smaller"
    if is_recurrent(draft):
        return "its recurrent layers cannot undo a rejected draft"
    mine, theirs = (_kind(one) for one in (target, draft))
    if mine and theirs and mine != theirs:
        return "its tokenizer is of a different type"
    if abs(target.vocab_size - draft.vocab_size) > _MORE:
        return f"its vocabulary has {draft.vocab_size} tokens, not {target.vocab_size}"
    for name, where in (("bos", "BOS"), ("eos", "EOS")):
        if not _same_edge(target, draft, name):
            return f"its {where} token is different"
    return ""


def is_much_smaller(draft: ModelHeader, target: ModelHeader) -> bool:
    """Say whether one model is so much smaller that it may well pay as a draft."""
    return draft.weights_bytes * _SHARE < target.weights_bytes


def _kind(header: ModelHeader) -> str:
    """Return the kind of tokenizer; '' where the header does not say."""
    found = header.text("tokenizer.ggml.model")
    return "" if not found or found in _UNSAID else _KINDS.get(found, found)


def _same_edge(one: ModelHeader, other: ModelHeader, name: str) -> bool:
    """Say whether two models put the same token at the beginning or the end, where both headers say so."""
    adds = [header.metadata.get(f"tokenizer.ggml.add_{name}_token") for header in (one, other)]
    if None in adds:
        return True
    ids = {header.metadata.get(f"tokenizer.ggml.{name}_token_id") for header in (one, other)}
    return adds[0] == adds[1] and (not adds[0] or len(ids - {None}) < 2)
