"""One model on one machine: the ways to load it, how much memory each takes, and how fast each is.

Memory sizes come from llama.cpp's dry run for a GGUF file, and from formulas for an MLX model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar, get_args

import msgspec

from edgechat.base.errors import DryRunFailed
from edgechat.device.profile import DeviceProfile
from edgechat.device.speed import DeviceSpeed
from edgechat.models.formats.header import ModelHeader
from edgechat.native import amx
from edgechat.native.params import Breakdown, Buffer, CacheType, LoadParams
from edgechat.planner.companions import (
    ANSWER,
    AdapterPlan,
    Picture,
    ProjectorFile,
    ProjectorPlan,
    adapter_needs,
    encoding_seconds,
    largest_picture,
    places,
    why_there,
)
from edgechat.planner.estimate import calibration
from edgechat.planner.estimate.budget import (
    RAM,
    SPARE,
    Budget,
    Extras,
    Layout,
    Needs,
    needs_of,
    together,
    with_less,
    with_more,
)
from edgechat.planner.estimate.calibration import Calibration, Correction, RunConditions
from edgechat.planner.estimate.dry_run import MEMORY_LIMIT
from edgechat.planner.estimate.footprint import Footprint, footprint_of, may_quantize
from edgechat.planner.estimate.memory import (
    CELLS,
    has_large_state,
    is_recurrent,
    padded,
    program_bytes,
    recurrent_bytes,
)
from edgechat.planner.estimate.rates import rate_of_processor
from edgechat.planner.estimate.shape import ModelShape, shape_of
from edgechat.planner.estimate.speed import PROMPT, Attending, Forecast, forecast, is_plain_worth
from edgechat.settings import AttentionWish

_LONGEST = 32768
_TRIES = 6
_CHECKPOINTS, _CHECKPOINT_SHARE = 32, 1 / 8
"""Maximum number of checkpoints, and their maximum fraction of the RAM that the load leaves free."""

LONGEST_TEXT = 8192
"""Maximum context in tokens, unless the user requests more. The compute buffers grow with it."""


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """The cost of drafting for a model, regardless of what produces the drafts."""

    drafted: int = 0
    """Maximum number of drafted tokens in a call; 0 means no drafts."""
    n_rs_seq: int = 0
    """Number of snapshots of each sequence's recurrent state, one for each token that can be undone."""
    mtp: bool = False
    """Whether the model's own layers (MTP) produce the drafts."""
    why_not: str = ""
    """Why there is no drafting, as a sentence."""


NOBODY = DraftCosts()


@dataclass(frozen=True)
class ModelOnMachine:
    """One model on one machine, with a calibration for predictions."""

    name: str
    header: ModelHeader
    shape: ModelShape
    budget: Budget
    rates: Mapping[str | None, DeviceSpeed]
    """The speeds of the CPU (None) and of each card."""
    measure: Measure | None = None
    """Function that performs a dry run. If it is None, all sizes are estimated."""
    learned: Calibration = field(default_factory=Calibration)
    processor: str = ""
    """The CPU's name and number of threads, used as a key for calibration."""
    rpc: tuple[str, ...] = ()
    """RPC servers that provide some of the cards."""
    drafting: DraftCosts = NOBODY
    draft: ModelOnMachine | None = None
    """Its draft model, which has priority when the shared budget is divided."""
    projector: ProjectorFile | None = None
    """Its projector, which is included in the same budget."""
    adapters: tuple[AdapterPlan, ...] = ()
    """LoRA adapters. Each of their parts is placed with the tensor it modifies."""
    attention: AttentionWish = "auto"
    """Kind of attention for chat models, with llama.cpp only.

    'auto' picks the faster kind if it fits just as comfortably as the other.
    """
    least_ubatch: int = 0
    """Minimum number of tokens in a micro-batch."""
    beyond: int = 0
    """Bytes by which earlier processes with similar models exceeded the formula for `program`."""

    @cached_property
    def footprint(self) -> Footprint:
        """The memory formulas for the model's backend."""
        return footprint_of(self.header.format)

    @cached_property
    def n_seq_max(self) -> int:
        """Number of sequences, either running or cached for the next turn of a chat.

        They share the cells of layers with full attention, but each has its own window and recurrent state.
        """
        if has_large_state(self.header):
            return 2
        return 4 if recurrent_bytes(self.header, 1) or self.header.sliding_window else 8

    @cached_property
    def program(self) -> int:
        """Bytes of memory for the process itself."""
        return max(0, program_bytes(self.header.vocab_size, self.header.format) + self.beyond)

    @cached_property
    def _per_token(self) -> dict[CacheType, int]:
        return {kind: self.footprint.per_token(self.header, kind) for kind in get_args(CacheType)}

    def load(self, context: int, cache_type: CacheType) -> LoadConfig:
        """Return the fastest load that fits with this context, or the CPU-only load if none fits."""
        if self.projector is not None:
            return self._seeing(self.projector, context, cache_type)
        if self.draft is None:
            return self._load(context, cache_type)
        beside = self.draft.load_as_draft(context)
        rest = replace(self, draft=None, budget=self.budget.less(beside.needs))
        return rest.load(context, cache_type).beside(beside)

    def _seeing(self, projector: ProjectorFile, context: int, cache_type: CacheType) -> LoadConfig:
        """Return the load with the projector on the best device (see `companions.py`)."""
        width = self.header.embedding_length
        picture = largest_picture(projector.header, width, padded(context))
        loads: list[LoadConfig] = []
        for device in places(self.budget) if self.footprint.splits else [self._only_place]:
            planned = projector.plan(picture, width, device)
            rest = replace(
                self,
                projector=None,
                least_ubatch=picture.whole,
                budget=self.budget.less(planned.needs),
            )
            loads.append(rest.load(context, cache_type).seeing(planned))
            if device and self._is_on_cards(loads[-1]) and self.fits(loads[-1]):
                return replace(loads[-1], why_there="all layers fit beside it")
        fitting = [load for load in loads if self.fits(load)]
        if not fitting:
            return loads[-1]
        seconds = [self._question_seconds(projector, picture, load) for load in fitting]
        best = fitting[seconds.index(min(seconds))]
        on_card = next((load for load in fitting if load.projector and load.projector.device), None)
        if best.projector is None or on_card is None or on_card.projector is None:
            return best
        moved = max(0, loads[-1].layout.n - on_card.layout.n)
        return replace(best, why_there=why_there(best.projector.device, on_card.projector.device, moved))

    @property
    def _only_place(self) -> str:
        """The only possible device, for a model that cannot be split."""
        return self.budget.cards[-1].name if self.budget.cards else ""

    def _question_seconds(self, projector: ProjectorFile, picture: Picture, load: LoadConfig) -> float:
        """Return the seconds it takes to read the largest picture and answer a question about it."""
        device = load.projector.device if load.projector is not None else ""
        answering = load.forecast.prefilling(picture.tokens) + ANSWER * load.forecast.decoding(picture.tokens)
        return encoding_seconds(projector.header, picture, self.rates[device or None]) + answering

    def _is_on_cards(self, load: LoadConfig) -> bool:
        return load.layout.n == len(self.shape.parts) and not load.layout.experts_in_ram

    def load_as_draft(self, context: int) -> LoadConfig:
        """Return the load as a draft model, with an 8-bit KV cache if possible: drafts are verified anyway.

        MLX does not use an 8-bit cache, because prefill would take more memory than the cache saves. Nor does
        llama.cpp if plain attention, which cannot read an 8-bit cache, is faster and fits comfortably.
        """
        whole = self.load(context, "f16")
        if self.header.format != "gguf" or not may_quantize(self.header) or self.attention == "plain":
            return whole
        small = self.load(context, "q8_0")
        if whole.params.flash_attention or not self.fits(whole, SPARE):
            return small
        is_worth = is_plain_worth(whole.forecast, small.forecast, self.learned.use(), drafts=False)
        return whole if is_worth else small

    def _load(self, context: int, cache_type: CacheType) -> LoadConfig:
        cells = padded(context)
        if self.attention == "plain" and self.may_be_plain(cache_type):
            return self._placed(cells, cache_type, flash=False)
        load = self._placed(cells, cache_type, flash=True)
        other = self.other_attention(load)
        if other is None or not is_plain_worth(other, load.forecast, self.learned.use(), drafts=load.drafts):
            return load
        params = msgspec.structs.replace(load.params, flash_attention=False)
        plain = self._measured(self._estimated(params, load.layout, self._extras(params)))
        return plain if self.fits(plain, SPARE) else load

    def may_be_plain(self, cache_type: CacheType) -> bool:
        """Return whether plain attention is possible. It cannot read an 8-bit cache."""
        return self.header.format == "gguf" and cache_type == "f16" and not self.header.makes_embeddings

    def other_attention(self, load: LoadConfig) -> Forecast | None:
        """Return the forecast with the other kind of attention, or None if there is no choice or no data.

        Layers on accelerators always use flash attention, which is designed for accelerators.
        """
        if self.attention != "auto" or load.layout.n or not self.may_be_plain(load.params.cache_type):
            return None
        if self.shape.heads is None or not self.rates[None].knows(self.shape.heads):
            return None
        other = msgspec.structs.replace(load.params, flash_attention=not load.params.flash_attention)
        return self._forecast(load.layout, other)

    def _placed(self, cells: int, cache_type: CacheType, *, flash: bool) -> LoadConfig:
        """Return the load with the fastest layout that fits, or the CPU-only load if none fits."""
        params = self._params(cells, cache_type, Layout(), flash=flash)
        extras = self._extras(params)
        tried: list[LoadConfig] = []
        layouts = self.footprint.layouts(self._loaded(self.drafting.mtp), extras, self.budget)
        # The sort is stable, so of equally fast layouts the simplest comes first.
        for layout in sorted(layouts, key=lambda way: self._forecast(way, params).decode):
            load = self._fitted(params, layout, extras)
            tried.append(load)
            if self.fits(load):
                return load
        return tried[-1]

    def _loaded(self, mtp: bool) -> ModelShape:
        """Return the shape as loaded, omitting layers that only predict further tokens unless they draft."""
        return self.shape if mtp else self.shape.without_head

    def _extras(self, params: LoadParams) -> Extras:
        return self.footprint.extras(self.header, params, self.program)

    def _forecast(self, layout: Layout, params: LoadParams) -> Forecast:
        *layers, output = layout.placed(self.shape)
        main = layers[: len(layers) - self.shape.n_head]
        attending = Attending(params.attention, params.cache_type, params.n_seq_max)
        return forecast(
            self.shape,
            [*main, output],
            self.rates,
            self._per_token[params.cache_type],
            attending if self.header.format == "gguf" else None,
        )

    def with_layers_on(self, devices: Collection[str], load: LoadConfig) -> Forecast | None:
        """Return the best forecast with layers on any of these devices, or None if no layers fit there."""
        extras = self._extras(load.params)
        layouts = self.footprint.layouts(self._loaded(load.params.mtp), extras, self.budget)
        forecasts = [
            self._forecast(layout, load.params)
            for layout in layouts
            if set(devices).intersection(layout.devices)
        ]
        return min(forecasts, key=lambda one: one.decoding(PROMPT), default=None)

    def _fitted(self, base: LoadParams, layout: Layout, extras: Extras) -> LoadConfig:
        """Return the load after moving layers onto or off the cards, as llama.cpp's dry run requires."""
        best: LoadConfig | None = None
        for _ in range(_TRIES):
            params = self._params(base.context, base.cache_type, layout, flash=base.flash_attention)
            load = self._measured(self._estimated(params, layout, extras))
            over, shape = self.budget.over(load.needs), self._loaded(load.params.mtp)
            if not self.footprint.splits:
                return load
            if not over and (best is None or load.layout.reach > best.layout.reach):
                best = load
            if over:
                changed: Layout | None = with_less(layout, over, shape, extras)
            else:
                changed = with_more(layout, self._room(load), shape, extras)
            if changed is None or (best is not None and changed.reach <= best.layout.reach):
                break
            layout = changed
        return best or load

    def _room(self, load: LoadConfig) -> dict[str, int]:
        """Return how many bytes the dry run leaves on each card in use, or {} if sizes are only estimated."""
        used = (card for card in self.budget.cards if card.name in load.layout.devices)
        left = {card.name: card.budget - load.needs[card.name].total_bytes for card in used}
        return left if load.source == EXACT else {}

    def exactly(self, params: LoadParams, projector: ProjectorPlan | None = None) -> LoadConfig:
        """Return the load with exactly these parameters and this projector, whether or not it fits."""
        layout = Layout(params.devices, params.split, params.experts_in_ram)
        plain = LoadParams.of(msgspec.structs.replace(params, threads=1))
        load = self._measured(self._estimated(plain, layout, self._extras(plain)))
        return load if projector is None else load.seeing(projector)

    def _params(self, cells: int, cache_type: CacheType, layout: Layout, *, flash: bool) -> LoadParams:
        params = LoadParams(
            context=cells,
            cache_type=cache_type,
            n_seq_max=self.n_seq_max,
            n_outputs_max=self.n_seq_max + self.drafting.drafted,
            n_rs_seq=self.drafting.n_rs_seq,
            flash_attention=flash,
            devices=layout.devices,
            split=layout.split,
            experts_in_ram=layout.experts_in_ram,
            rpc=self.rpc if layout.devices else (),
            mtp=self.drafting.mtp,
        )
        if self.least_ubatch > params.n_ubatch:
            size = self.least_ubatch
            params = msgspec.structs.replace(params, n_batch=max(params.n_batch, size), n_ubatch=size)
        return for_embeddings(params, self.header) if self.header.makes_embeddings else params

    def _estimated(self, params: LoadParams, layout: Layout, extras: Extras) -> LoadConfig:
        return LoadConfig(
            params=params,
            layout=layout,
            needs=together(
                self.footprint.needs(self._loaded(params.mtp), extras, layout), self._adapter_needs(layout)
            ),
            forecast=self._forecast(layout, params),
            source=self.footprint.source,
        )

    def _measured(self, load: LoadConfig) -> LoadConfig:
        """Return the load with sizes from llama.cpp's dry run, if one is possible."""
        if self.measure is None:
            return load
        if recurrent_bytes(self.header, self.n_seq_max, load.params.n_rs_seq) > MEMORY_LIMIT // 2:
            return replace(load, source="estimated: the recurrent states are too large for a dry run")
        try:
            breakdown = self.measure(load.params)
        except DryRunFailed as failed:
            return replace(load, source=f"estimated: {failed.message.removesuffix('.')}")
        needs = together(needs_of(breakdown, self.program), self._adapter_needs(load.layout))
        if not load.layout.n and not any(buffer.name == amx.NAME for buffer in breakdown.buffers):
            # A matrix shared by input and output may be counted twice, but is mapped only once. This does not
            # apply to AMX's layout, in which weights take more memory than in the file.
            needs[RAM] = msgspec.structs.replace(
                needs[RAM], weights_bytes=min(needs[RAM].weights_bytes, self.header.weights_bytes)
            )
        return replace(load, needs=needs, source=EXACT, buffers=breakdown.buffers)

    def _adapter_needs(self, layout: Layout) -> dict[str, Needs]:
        devices = [device or RAM for device in layout.devices_of(len(self.shape.parts))]
        return adapter_needs(self.adapters, devices, layout.experts_in_ram)

    @property
    def as_draft(self) -> ModelOnMachine:
        """The model as configured when it runs in another model's process."""
        return replace(self, beyond=-program_bytes(0, self.header.format))

    def beside(self, load: LoadConfig, draft: ModelOnMachine) -> LoadConfig | None:
        """Return the load with a draft model in the remaining memory, or None if there is not enough."""
        left = replace(draft.as_draft, budget=self.budget.less(load.needs))
        both = load.beside(left.load_as_draft(load.context))
        return both if self.fits(both, SPARE if self.fits(load, SPARE) else 0.0) else None

    def checkpoint_bytes(self, load: LoadConfig) -> int:
        """Return the memory limit for chat checkpoints: a modest fraction of the RAM that a load leaves free.

        At least one checkpoint is allowed if it fits, because a chat's next turn may need it.
        """
        size = self.footprint.checkpoint(self.header, load.params)
        if not size and is_recurrent(self.header):  # a kind that the formulas do not cover
            size = sum(needs.cache_bytes for needs in load.needs.values()) // load.params.n_seq_max
        left = self.budget.ram - self.budget.charged(load.needs)
        if not size or left < size or load.params.embeddings:
            return 0
        return size * max(1, min(_CHECKPOINTS, int(_CHECKPOINT_SHARE * left) // size))

    def correction(self, load: LoadConfig) -> Correction:
        """Return the correction for this load's speed, learned from earlier loads."""
        return self.learned.correction(self.where_of(load))

    def where_of(self, load: LoadConfig) -> RunConditions:
        """Return the conditions that a load's speed depends on."""
        workers = {card.name: card.accelerator.worker for card in self.budget.cards}
        kinds = {workers.get(name) or name.rstrip("0123456789") for name in load.layout.devices}
        if not kinds or load.layout.n < len(self.shape.parts) or load.layout.experts_in_ram:
            kinds.add("CPU")
        return self.conditions("+".join(sorted(kinds)))

    def conditions(self, backend: str) -> RunConditions:
        """Return the conditions for loads that use the given devices."""
        return RunConditions(
            machine=self.processor,
            build=calibration.build(self.header.format),
            backend=backend,
            architecture=self.header.architecture,
            quant=self.shape.main_type.name,
            model=self.name,
        )

    def fits(self, load: LoadConfig, spare: float = 0.0) -> bool:
        """Return whether a load is within the budget. spare: fraction of RAM to leave free."""
        return self.budget.fits(load.needs, spare=spare)

    def seconds(self, load: LoadConfig) -> float:
        """Return how many seconds each token takes with a load."""
        return self.correction(load).decode * load.forecast.decoding(0)

    def longest(self, cache_type: CacheType) -> int:
        """Return the longest context that fits, in tokens; 0 if none fits."""
        contexts = range(CELLS, (self.header.context_length or _LONGEST) + 1, CELLS)
        n = bisect_left(contexts, True, key=lambda context: not self.fits(self.load(context, cache_type)))
        return n * CELLS


def model_on_machine(
    name: str,
    header: ModelHeader,
    profile: DeviceProfile,
    measure: Measure | None = None,
    history: Calibration | None = None,
    *,
    threads: int,
    drafting: DraftCosts = NOBODY,
    projector: ProjectorFile | None = None,
    adapters: tuple[AdapterPlan, ...] = (),
    attention: AttentionWish = "auto",
) -> ModelOnMachine:
    """Return a model on a machine. Without `measure`, all sizes are estimated."""
    is_measured = profile.speed is not None and profile.speed.measured > 0
    processor = rate_of_processor(profile.speed, threads)
    budget = Budget.of(profile, header.format)
    rate = footprint_of(header.format).rate
    rates: dict[str | None, DeviceSpeed] = {None: rate(None, processor, None)}
    for card in budget.cards:
        measured = next(filter(None, map(profile.card_speeds.get, card.accelerator.devices)), None)
        rates[card.name] = rate(card.accelerator, processor, measured)
    model = ModelOnMachine(
        name,
        header,
        shape_of(header),
        budget,
        rates,
        measure,
        history or Calibration(),
        f"{profile.cpu.name}, {threads} threads{'' if is_measured else ', not measured'}",
        profile.rpc if header.format == "gguf" else (),
        drafting,
        projector=projector,
        adapters=adapters,
        attention=attention,
    )
    return replace(model, beyond=model.learned.beyond(model.conditions("CPU")))


EXACT = "exact, by llama.cpp's own allocator"
Measure = Callable[[LoadParams], Breakdown]
"""A function such as `DryRun.ask`, which returns the memory that a load needs or raises DryRunFailed."""


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """One way to load a model: its parameters, layout, memory and speed."""

    params: LoadParams
    layout: Layout
    needs: Mapping[str, Needs]
    """What the load needs in each kind of memory, keyed by 'RAM' or the name of a card."""
    forecast: Forecast
    source: str
    """A phrase that says where the sizes come from."""
    buffers: tuple[Buffer, ...] = ()
    """Sizes for each buffer type; empty if they are only estimated."""
    draft: LoadConfig | None = None
    """The load of its drafter, whose memory is included in `needs`."""
    projector: ProjectorPlan | None = None
    """Its projector, whose memory is included in `needs`."""
    why_there: str = ""
    """Why the projector is placed where it is, as the end of a sentence."""

    @property
    def context(self) -> int:
        """Context in tokens, rounded up as in llama.cpp."""
        return self.params.context

    @property
    def drafts(self) -> bool:
        """Whether the load leaves room for verifying drafts."""
        return self.params.n_outputs_max > self.params.n_seq_max

    @property
    def total(self) -> int:
        """Total memory that the load needs, in bytes."""
        return sum(needs.total_bytes for needs in self.needs.values())

    def keeping(self, n_bytes: int) -> LoadConfig:
        """Return the load with `n_bytes` of checkpoints added, which are in RAM wherever the cache is."""
        return replace(self, needs=together(self.needs, {RAM: Needs(checkpoint_bytes=n_bytes)}))

    def seeing(self, projector: ProjectorPlan) -> LoadConfig:
        """Return the load with a projector added."""
        return replace(self, needs=together(self.needs, projector.needs), projector=projector)

    def beside(self, draft: LoadConfig) -> LoadConfig:
        """Return the load with a drafter's load added."""
        return replace(self, needs=together(self.needs, draft.needs), draft=draft)


_Params = TypeVar("_Params", bound=LoadParams)


def for_embeddings(params: _Params, header: ModelHeader) -> _Params:
    """Return the parameters for loading a model that embeds texts of up to `context` tokens.

    If all tokens in a text attend to each other, or are pooled, one call must compute the entire text.
    """
    size = min(params.n_batch, params.context) if header.reads_in_parts else params.context
    return msgspec.structs.replace(
        params,
        embeddings=True,
        reranks=header.kind == "reranking",
        n_batch=size,
        n_ubatch=size,
        n_outputs_max=0,
    )
