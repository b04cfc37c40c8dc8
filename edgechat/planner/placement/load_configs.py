"""The ways of loading one model on one machine: what each takes, and its speed.

What a GGUF file takes llama.cpp itself says; what an MLX model takes formulas do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from edgechat.errors import DryRunFailed
from edgechat.models.formats.header import ModelHeader
from edgechat.native.buffers import Breakdown, Buffer
from edgechat.native.params import CacheType, LoadParams
from edgechat.planner.drafting import NOBODY, DraftCosts, cache_type_of, has_large_state
from edgechat.planner.estimate.dry_run import MEMORY_LIMIT
from edgechat.planner.estimate.footprint import Footprint, footprint_of
from edgechat.planner.estimate.memory import CELLS, program_bytes, recurrent_bytes
from edgechat.planner.estimate.shape import ModelShape
from edgechat.planner.estimate.speed import DeviceRate, Forecast, forecast
from edgechat.planner.placement.budget import RAM, Budget, Card, Needs, needs_of, together
from edgechat.planner.placement.embedding import for_embeddings
from edgechat.planner.placement.layout import Extras, Layout

EXACT = "exact, by llama.cpp's own allocator"
_TRIES = 6
Measure = Callable[[LoadParams], Breakdown]
"""What a load takes by llama.cpp's own account, or DryRunFailed: `DryRun.ask`."""


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """One way of loading the model."""

    params: LoadParams
    layout: Layout
    needs: Mapping[str, Needs]
    """Of each memory: 'RAM' and the cards by name."""
    forecast: Forecast
    source: str
    """How we know what it takes, in words."""
    buffers: tuple[Buffer, ...] = ()
    """By type of buffer; empty where it is estimated."""
    draft: LoadConfig | None = None
    """Of the model that drafts for it; what that takes is in `needs` too."""

    @property
    def context(self) -> int:
        """Tokens, as llama.cpp rounds them."""
        return self.params.context

    @property
    def total(self) -> int:
        """Bytes altogether."""
        return sum(one.total for one in self.needs.values())

    def beside(self, draft: LoadConfig) -> LoadConfig:
        """Return this load with that of a model that drafts for it."""
        return replace(self, needs=together(self.needs, draft.needs), draft=draft)


@dataclass(frozen=True)
class LoadConfigs:
    """A model on a machine."""

    header: ModelHeader
    shape: ModelShape
    budget: Budget
    rates: Mapping[str | None, DeviceRate]
    """Of the processor (None) and of each card."""
    measure: Measure | None = None
    beyond: int = 0
    """Bytes that processes around models like this were seen to take beyond `program`."""
    rpc: tuple[str, ...] = ()
    """Servers whose devices are among the cards."""
    drafting: DraftCosts = NOBODY
    """What drafts for it may take."""
    draft: LoadConfigs | None = None
    """The model that drafts for it and comes first, in the same budget."""

    @cached_property
    def footprint(self) -> Footprint:
        """What its backend takes."""
        return footprint_of(self.header.format)

    @cached_property
    def n_seq_max(self) -> int:
        """Sequences: those that run at once, and those that stay warm for the next turn of a chat.

        They share the cells of plain layers; each takes a window of its own in windowed layers, and a state
        in recurrent ones.
        """
        if has_large_state(self.header):
            return 2
        return 4 if recurrent_bytes(self.header, 1) or self.header.sliding_window else 8

    @property
    def program(self) -> int:
        """Bytes of the process around the model."""
        return max(0, program_bytes(self.header.vocab_size, self.header.format) + self.beyond)

    def load(self, context: int, cache_type: CacheType) -> LoadConfig:
        """Return the fastest way that fits with this context; where none does, the processor's alone."""
        if self.draft is None:
            return self._load(context, cache_type)
        beside = self.draft.load(context, cache_type_of(self.draft.header))
        rest = replace(self, draft=None, budget=self.budget.less(dict(beside.needs)))
        found = rest.load(context, cache_type)
        return found.beside(beside)

    def _load(self, context: int, cache_type: CacheType) -> LoadConfig:
        cells = -(-context // CELLS) * CELLS
        about = self._about(self._params(cells, cache_type, Layout()))
        tried: list[LoadConfig] = []
        ways = self.footprint.layouts(self.shape, about, self.budget)
        ahead = [(self._forecast(one, cache_type), one) for one in ways]
        ahead.sort(key=lambda pair: pair[0].decode)  # stable: the plainest of equals stays first
        for _, one in ahead:
            found = self._fitted(cells, cache_type, one, about)
            tried.append(found)
            if self.budget.fits(dict(found.needs)):
                return found
        return tried[-1]

    def _about(self, params: LoadParams) -> Extras:
        return self.footprint.extras(self.header, params, self.program)

    def _forecast(self, on: Layout, cache_type: CacheType) -> Forecast:
        per_token = self.footprint.per_token(self.header, cache_type)
        return forecast(self.shape, on.placed(self.shape), self.rates, per_token)

    def _fitted(self, cells: int, cache_type: CacheType, on: Layout, about: Extras) -> LoadConfig:
        """Return the load, with layers taken off cards or put on them as llama.cpp's account says."""
        best: LoadConfig | None = None
        for _ in range(_TRIES):
            params = self._params(cells, cache_type, on)
            found = self._measured(self._estimated(params, on, about))
            over = self.budget.over(dict(found.needs))
            if not self.footprint.splits:
                return found
            if not over and (best is None or found.layout.reach > best.layout.reach):
                best = found
            changed = self._less(on, over, about) if over else self._more(found, about)
            if changed is None or (best is not None and changed.reach <= best.layout.reach):
                break
            on = changed
        return best or found

    def _less(self, on: Layout, over: Mapping[str, int], about: Extras) -> Layout:
        """Return a layout with experts in RAM, or else layers, that a card holds too many of."""
        on_device = on.devices_of(len(self.shape.parts))
        while on.experts_in_ram and on.experts_in_ram < len(self.shape.layers):
            layer = on.experts_in_ram
            name = on_device[layer] or RAM
            if over.get(name, 0) <= 0:
                break
            on = replace(on, experts_in_ram=layer + 1)
            over = {**over, name: over[name] - self.shape.layers[layer].experts}
        size = max(about.parts(self.shape, on.experts_in_ram))
        for name, n_bytes in over.items():
            if name in on.devices and n_bytes > 0:
                on = on.changed(name, -n_bytes // max(1, size))
        return on

    def _more(self, found: LoadConfig, about: Extras) -> Layout | None:
        """Return a layout with more on a card where the account leaves room that the formulas did not see."""
        on, parts = found.layout, self.shape.parts
        if found.source != EXACT or not on.n:
            return None
        room = {card.name: card.budget - found.needs[card.name].total for card in self._used(on)}
        if on.n == len(parts):
            on_device = on.devices_of(len(parts))
            experts = on.experts_in_ram
            while experts and room[on_device[experts - 1] or RAM] >= parts[experts - 1].experts:
                experts -= 1
                room[on_device[experts] or RAM] -= parts[experts].experts
            return replace(on, experts_in_ram=experts) if experts < on.experts_in_ram else None
        size = about.parts(self.shape, on.experts_in_ram)[len(parts) - on.n - 1]
        return next((on.changed(name, 1) for name, left in room.items() if left >= size), None)

    def _used(self, on: Layout) -> list[Card]:
        return [card for card in self.budget.cards if card.name in on.devices]

    def exactly(self, params: LoadParams) -> LoadConfig:
        """Return what a load with these parameters takes, whether it fits or not."""
        on = Layout(params.devices, params.split, params.experts_in_ram)
        plain = LoadParams.of(msgspec.structs.replace(params, threads=1))
        return self._measured(self._estimated(plain, on, self._about(plain)))

    def _params(self, cells: int, cache_type: CacheType, on: Layout) -> LoadParams:
        made = LoadParams(
            context=cells,
            cache_type=cache_type,
            n_seq_max=self.n_seq_max,
            n_outputs_max=self.n_seq_max + self.drafting.drafted,
            n_rs_seq=self.drafting.n_rs_seq,
            devices=on.devices,
            split=on.split,
            experts_in_ram=on.experts_in_ram,
            rpc=self.rpc if on.devices else (),
        )
        return for_embeddings(made, self.header) if self.header.makes_embeddings else made

    def _estimated(self, params: LoadParams, on: Layout, about: Extras) -> LoadConfig:
        return LoadConfig(
            params=params,
            layout=on,
            needs=self.footprint.needs(self.shape, about, on),
            forecast=self._forecast(on, params.cache_type),
            source=self.footprint.source,
        )

    def _measured(self, load: LoadConfig) -> LoadConfig:
        """Return the load with what llama.cpp's account says it takes, where it can be had."""
        if self.measure is None:
            return load
        if recurrent_bytes(self.header, self.n_seq_max, load.params.n_rs_seq) > MEMORY_LIMIT // 2:
            return replace(load, source="estimated: its states are too large for a dry run")
        try:
            found = self.measure(load.params)
        except DryRunFailed as failed:
            return replace(load, source=f"estimated: {failed.message.removesuffix('.')}")
        needs = needs_of(found, self.program)
        if not load.layout.n:
            # A matrix that input and output share may be counted twice; mapped, it is there once.
            needs[RAM] = replace(needs[RAM], weights=min(needs[RAM].weights, self.header.weights_bytes))
        return replace(load, needs=needs, source=EXACT, buffers=found.buffers)
