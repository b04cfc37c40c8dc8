"""Drafting: whether a model can use drafts, what they cost, and what can produce them.

Drafts can come from a small model or from the model's own layers (MTP).

Rejected drafts have to be undone. Cells of a KV cache are simply removed. A recurrent state is restored from
a snapshot as large as the state itself, which llama.cpp supports only for some architectures. With MLX, the
state before each call is stored, and the call's accepted tokens are computed again.

A model's own drafting layers are loaded if they make replies faster and fit in memory along with the context
that was chosen without them. The context is shortened to make room for them only if they make replies much
faster, and if enough context remains.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from edgechat.base.text import mebibytes
from edgechat.models.formats import mtp
from edgechat.models.formats.header import Format, ModelHeader
from edgechat.models.formats.mtp import HeadFile, is_chained, stated_layers
from edgechat.native.params import CacheType
from edgechat.planner.estimate.budget import RAM, SPARE, Layout, Needs, together
from edgechat.planner.estimate.memory import (
    SMALL_STATE,
    TAKES_BACK,
    head_buffers,
    head_cache_bytes,
    is_recurrent,
    recurrent_bytes,
)
from edgechat.planner.estimate.shape import shape_of
from edgechat.planner.estimate.speed import forecast
from edgechat.planner.placement.model_on_machine import EXACT, NOBODY, DraftCosts, LoadConfig, ModelOnMachine
from edgechat.planner.plan import HeadPlan
from edgechat.planner.request import ENOUGH

AUTO, NONE, NGRAM, MTP = "auto", "none", "ngram", "mtp"
"""Values of `draft` that do not name a model."""
DRAFTED = 15
"""Maximum number of drafted tokens in a batch."""
_SNAPSHOTS, _FEW_SNAPSHOTS = 8, 3
"""Number of snapshots of a small state, and of a large one."""
_SHARE = 2
"""Unless the user requested it, a draft model must be smaller than the target by more than this factor."""
_MAX_PADDING = 128
"""Maximum difference between the sizes of two vocabularies, as some are padded."""

_TOKENIZER_KINDS = {"hybriddna": "gpt2", "whitespace": "gpt2", "gemma4": "gpt2"}
"""Maps tokenizers to others of the same kind."""
_UNKNOWN_TOKENIZERS = ("none", "no_vocab")


KINDS: dict[Format, str] = {"gguf": "a GGUF file", "mlx": "an MLX model"}
"""Names of the model formats, as shown to users."""


def asks_for_drafts(wish: str | None) -> bool:
    """Return whether the user explicitly requested drafts."""
    return wish not in (None, AUTO, NONE)


def draft_costs(header: ModelHeader, wish: str) -> DraftCosts:
    """Return the cost of drafting for a model by any means except its own layers (see `head_costs`).

    wish: 'auto', 'none', 'ngram', 'mtp' or a draft model.
    """
    if header.makes_embeddings:
        return NOBODY
    if wish == NONE:
        return DraftCosts(why_not="Drafting is off, as requested.")
    if header.format == "mlx" or not is_recurrent(header):
        return DraftCosts(DRAFTED)
    if header.architecture not in TAKES_BACK:
        return DraftCosts(
            why_not="Drafting is not possible: the recurrent layers cannot undo a rejected draft."
        )
    state = recurrent_bytes(header, 1)
    if 0 < state <= SMALL_STATE:
        return DraftCosts(DRAFTED, _SNAPSHOTS)
    if wish not in (AUTO, MTP):
        return DraftCosts(DRAFTED, _FEW_SNAPSHOTS)
    size = f", {mebibytes(state)} each" if state else ""
    return DraftCosts(
        why_not="Drafting is off: to undo rejected drafts, copies of the recurrent state would be "
        f"needed{size}. To use them: --draft ngram"
    )


def head_costs(header: ModelHeader, wish: str, *, beside: bool = False) -> DraftCosts:
    """Return the cost of drafting with the model's own layers, or the reason they cannot draft.

    beside: whether there are layers in a separate file.
    """
    if wish not in (AUTO, MTP) or header.makes_embeddings:
        return NOBODY
    why_not = mtp.why_no_drafts(header)
    others = draft_costs(header, NGRAM)
    if not others.drafted or (why_not and not beside):
        return DraftCosts(why_not=why_not or others.why_not)
    return replace(others, mtp=not why_not)


def misfit(target: ModelHeader, draft: ModelHeader) -> str:
    """Return why `draft` cannot draft for `target`, judging by their headers, or '' if it can.

    The tokens themselves are compared once both models are loaded.
    """
    if draft.format != target.format:
        return f"it is {KINDS[draft.format]}, but the target is {KINDS[target.format]}"
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
    """Return whether a model is small enough to draft for another one."""
    return draft.weights_bytes * _SHARE < target.weights_bytes


def _tokenizer_kind(header: ModelHeader) -> str:
    """Return the kind of tokenizer that a model has, or '' if it is unknown."""
    name = header.text("tokenizer.ggml.model") or ""
    return "" if name in _UNKNOWN_TOKENIZERS else _TOKENIZER_KINDS.get(name, name)


def _has_same_token(target: ModelHeader, draft: ModelHeader, name: str) -> bool:
    """Return whether both models add the same BOS or EOS token, or True if one header does not say."""
    adds = [header.metadata.get(f"tokenizer.ggml.add_{name}_token") for header in (target, draft)]
    if None in adds:
        return True
    ids = {header.metadata.get(f"tokenizer.ggml.{name}_token_id") for header in (target, draft)}
    return adds[0] == adds[1] and (not adds[0] or len(ids - {None}) < 2)


ACCEPTED = 0.7
"""Acceptance rate assumed before anything has been drafted."""
LONGEST = 8
"""Maximum length of a draft, in tokens."""
EAGLE_BATCH = 64
"""Number of tokens that an EAGLE-3 draft model reads in one call."""
LEAST_GAIN = 1.05
"""Minimum speedup at which the layers are worth their memory."""
WORTH_CONTEXT = 1.25
"""Minimum speedup at which the layers are worth a shorter context."""


@dataclass(frozen=True, slots=True)
class HeadedModel:
    """A model with its drafting layers, which are in its own file or in a separate one."""

    model: ModelOnMachine
    """The model. Its loads leave room for verifying drafts and for copies of recurrent states."""
    file: HeadFile | None = None

    def load(self, context: int, cache_type: CacheType) -> LoadConfig:
        """Return the fastest load that fits."""
        load = self.model.load(context, cache_type)
        return load if self.file is None else load.beside(self._beside(self.file, load))

    def _beside(self, file: HeadFile, load: LoadConfig) -> LoadConfig:
        """Return the separate file's load, estimated by formula: on the output's device if it fits there."""
        header = file.header
        own = load.params.of_head()
        if file.kind == "eagle3":  # in this case llama.cpp stores the logits of all tokens in a call
            own = msgspec.structs.replace(
                own, n_batch=EAGLE_BATCH, n_ubatch=EAGLE_BATCH, n_outputs_max=EAGLE_BATCH
            )
        keys = sum(head_cache_bytes(header, own.context, own.cache_type)) if file.has_own_cache else 0
        compute, output = head_buffers(header, own, load.params.n_batch)
        shape = shape_of(header)
        weights = sum(part.weights + part.experts for part in shape.parts) - shape.tied
        there = Needs(weights, keys, compute)
        here = Needs(weights_bytes=shape.embedding, compute_bytes=output)
        left = self.model.budget.less(load.needs)
        device = load.layout.devices[-1:] if load.layout.n else ()
        if device and left.over({device[0]: there}):
            device = ()
        params = msgspec.structs.replace(
            load.params,
            mtp=file.kind == "mtp",
            n_batch=own.n_batch if file.kind == "eagle3" else load.params.n_batch,
            n_ubatch=own.n_ubatch,
            n_rs_seq=0,
            devices=device,
            split=(len(shape.parts),) * len(device),
            experts_in_ram=0,
        )
        needs = together({RAM: here}, {device[0] if device else RAM: there})
        layout = Layout(params.devices, params.split)
        return replace(load, params=params, layout=layout, needs=needs, buffers=(), draft=None)

    def expected_gain(self, load: LoadConfig) -> float:
        """Return the factor by which drafts of the best length are expected to speed up replies.

        A step decodes all the drafted tokens plus one, and yields the accepted tokens plus one.
        """
        n_chained = len(stated_layers(self._header)) if is_chained(self._header) else 1
        limits = [LONGEST, n_chained if n_chained > 1 else LONGEST]
        limits += [load.params.n_rs_seq] * is_recurrent(self.model.header)
        one, best, made, plain = self._draft_seconds(load, n_chained), 1.0, 1.0, load.forecast.call(1)
        for n in range(1, min(limits) + 1):
            made += ACCEPTED**n
            best = max(best, made * plain / (load.forecast.call(1 + n) + n * one))
        return best

    @property
    def _header(self) -> ModelHeader:
        return self.model.header if self.file is None else self.file.header

    def _draft_seconds(self, load: LoadConfig, n_chained: int) -> float:
        """Return the seconds that drafting takes per token. Chained layers draft one token each."""
        if self.file is None or load.draft is None:
            shape, layout = self.model.shape, load.layout
        else:
            shape, layout = shape_of(self.file.header), load.draft.layout
        *layers, output = layout.placed(shape)
        head = [layers[at] for at in stated_layers(self._header)][: None if n_chained == 1 else 1]
        return forecast(shape, [*head, output], self.model.rates, 0).calls[0]


@dataclass(frozen=True, slots=True)
class HeadChoice:
    """A load with the model's own drafting layers, or a load without them and the reason."""

    load: LoadConfig
    head: HeadPlan | None = None
    why_not: str = ""
    """Why the layers are not used; '' if the model has none."""
    why_context: str = ""
    """Why the context has this length, if the layers changed it."""


def reserve_head(
    model: ModelOnMachine, headed: HeadedModel, load: LoadConfig, reserved: LoadConfig
) -> HeadChoice | None:
    """Return the load with memory reserved for the drafting layers.

    Returns None if only the load without them fits. headed: the model with the layers. reserved: its best
    load.
    """
    if headed.model.fits(reserved) or not model.fits(load):
        return HeadChoice(reserved, _plan(model, load, headed, reserved))
    return None


def choose_head(
    model: ModelOnMachine,
    headed: HeadedModel,
    load: LoadConfig,
    shorter: Iterable[tuple[int, CacheType]],
    *,
    requested: bool,
) -> HeadChoice:
    """Return the load with the model's own drafting layers if they are worth it, or else the load unchanged.

    headed: the model with the layers. shorter: contexts that may be chosen instead, longest first. requested:
    whether the user requested the layers, in which case they are used even if they are not worth it.
    """
    beside = headed.load(load.context, load.params.cache_type)
    if load.source == EXACT != beside.source:
        return HeadChoice(load, why_not=_not_loaded(beside.source))
    head = _plan(model, load, headed, beside)
    if not requested and head.gain < LEAST_GAIN:
        return HeadChoice(load, why_not=_not_loaded(f"replies would hardly be faster, {_times(head.gain)}"))
    if headed.model.fits(beside, SPARE if model.fits(load, SPARE) else 0.0):
        return HeadChoice(beside, head)
    if requested or head.gain >= WORTH_CONTEXT:
        for context, cache_type in shorter:
            less = headed.load(context, cache_type)
            plan = _plan(model, load, headed, less)
            pays = context >= ENOUGH and plan.gain >= WORTH_CONTEXT
            if (requested or pays) and headed.model.fits(less, SPARE):
                return HeadChoice(less, plan, why_context=_for_context(load, less, plan))
    more = mebibytes(head.total_bytes)
    return HeadChoice(load, why_not=_not_loaded(f"there is no room for the extra {more}"))


def _plan(model: ModelOnMachine, load: LoadConfig, headed: HeadedModel, other: LoadConfig) -> HeadPlan:
    """Return how much memory the layers need, and the speedup over a load without them.

    The load without them may have a better layout.
    """
    context, cache_type = other.context, other.params.cache_type
    is_same = (context, cache_type) == (load.context, load.params.cache_type)
    alone = load if is_same else model.load(context, cache_type)
    gain = headed.expected_gain(other) * model.seconds(load) / headed.model.seconds(other)
    return HeadPlan(total_bytes=max(0, other.total - alone.total), gain=gain)


def _not_loaded(why: str) -> str:
    return f"Its own drafting layers (MTP) are not loaded: {why}."


def _times(gain: float) -> str:
    return f"{gain:.1f} times as fast" if gain >= LEAST_GAIN else f"{gain:.2f} times as fast"


def _for_context(load: LoadConfig, less: LoadConfig, plan: HeadPlan) -> str:
    cache_type = less.params.cache_type
    cache = "" if cache_type == "f16" else f", with the KV cache in {cache_type}"
    shortened = f"shortened from {load.context} " if less.context < load.context else ""
    return (
        f"Context {less.context}{cache}: {shortened}to make room for its own drafting layers (MTP), which "
        f"should make replies {_times(plan.gain)}."
    )
