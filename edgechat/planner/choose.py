"""The choice for one file: from its header, this machine and what a person wishes to a LoadPlan.

What a load takes llama.cpp's own allocator says (`dryrun.py`); where it does not, formulas estimate it. The
weights count in full, and once, although they are mapped from the file: pages that are read all the time must
stay in memory, and those of the file that the kernel has cached already are part of the free memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import msgspec

from edgechat.device.cpu import choose_threads
from edgechat.device.profile import DeviceProfile
from edgechat.errors import DoesNotFit
from edgechat.models.header import GgufHeader
from edgechat.native.params import CacheType
from edgechat.planner import learned
from edgechat.planner import wishes as wishing
from edgechat.planner.budget import RAM, SPARE, Budget
from edgechat.planner.learned import Learned, Where
from edgechat.planner.loads import Load, Loader, Measure
from edgechat.planner.memory import CELLS, recurrent_bytes
from edgechat.planner.plan import DeviceMemory, LoadPlan
from edgechat.planner.shape import shape_of
from edgechat.planner.speed import Correction, Rate, predict, rate_of_card, rate_of_processor
from edgechat.planner.wishes import NO_WISHES, Wishes
from edgechat.text import mebibytes

CONTEXTS = (32768, 16384, 8192, 4096, 2048)
"""Contexts that are tried, in tokens."""
USUAL = 16384
"""More is seldom used: it is taken only where filling it takes no longer than `_PATIENCE`."""
ENOUGH = 8192
"""Layers go to a card for this context first; a longer one must not push more than a few off it."""
_PATIENCE = 60.0
_SLOWER = 1.15


@dataclass(frozen=True)
class Chooser:
    """One model on one machine, with what was learnt of its like."""

    name: str
    loader: Loader
    learned: Learned
    where: Where
    """With the backend of the processor alone."""

    @property
    def header(self) -> GgufHeader:
        """The model's."""
        return self.loader.header

    @property
    def budget(self) -> Budget:
        """What there is."""
        return self.loader.budget

    def correction(self, load: Load) -> Correction:
        """Return what earlier loads tell of the speed of this one."""
        return self.learned.correction(self.where_of(load))

    def where_of(self, load: Load) -> Where:
        """Return what the speed of a load depends on."""
        kinds = {name.rstrip("0123456789") for name in load.layout.devices}
        if not kinds or load.layout.n < len(self.loader.shape.parts) or load.layout.experts_in_ram:
            kinds.add("CPU")
        return msgspec.structs.replace(self.where, backend="+".join(sorted(kinds)))

    def fits(self, load: Load, spare: float = 0.0) -> bool:
        """Say whether a load stays inside its budget, with a share of the RAM left over."""
        return self.budget.fits(dict(load.needs), spare=spare)

    def seconds(self, load: Load) -> float:
        """Return the seconds of a token."""
        return self.correction(load).decode * load.forecast.decoding(0)

    def longest(self, cache_type: CacheType) -> int:
        """Return the longest context in tokens that fits at all; 0 if none does."""
        few, many = 0, (self.header.context_length or CONTEXTS[0]) // CELLS + 1
        while many - few > 1:
            middle = (few + many) // 2
            if self.fits(self.loader.load(middle * CELLS, cache_type)):
                few = middle
            else:
                many = middle
        return few * CELLS


def chooser(
    name: str,
    header: GgufHeader,
    profile: DeviceProfile,
    measure: Measure | None = None,
    history: Learned | None = None,
    *,
    threads: int,
) -> Chooser:
    """Return a model on a machine; without `measure` all sizes are estimated."""
    history = history or Learned()
    processor = rate_of_processor(profile.speed)
    budget = Budget.of(profile)
    rates: dict[str | None, Rate] = {None: processor}
    rates |= {card.name: rate_of_card(card.about, processor) for card in budget.cards}
    loader = Loader(header, shape_of(header), budget, rates, measure, rpc=profile.rpc)
    where = Where(
        machine=f"{profile.cpu.name}, {threads} threads",
        build=learned.build(),
        backend="CPU",
        architecture=header.architecture,
        quant=loader.shape.main_type.name,
    )
    loader = replace(loader, beyond=history.beyond(where))
    return Chooser(name, loader, history, where)


def plan(
    name: str,
    header: GgufHeader,
    profile: DeviceProfile,
    wishes: Wishes = NO_WISHES,
    measure: Measure | None = None,
    history: Learned | None = None,
    *,
    path: str = "",
    nearest: bool = True,
) -> LoadPlan:
    """Return how to load this model here; without `measure` all sizes are estimated.

    nearest: where it does not fit, look for the context that does, to name it.
    Raises DoesNotFit, and SettingsError for wishes without sense.
    """
    wishes, notes = wishing.checked(wishes, header)
    threads, why_threads = choose_threads(profile.cpu)
    if wishes.threads is not None:
        threads, why_threads = wishes.threads, f"{wishes.threads} threads, as asked for."
    on = chooser(name, header, profile, measure, history, threads=threads)
    load, why_context = _asked(on, wishes, wishes.context) if wishes.context else _best(on, wishes)
    if not (on.fits(load) or wishes.anyway):
        raise _does_not_fit(on, load, nearest)
    blank = LoadPlan(
        context=load.context,
        threads=threads,
        model_path=path,
        model_name=name,
        quant=header.quant,
        file_bytes=header.file_size,
        n_layers=header.n_layers,
        notes=notes,
        anyway=wishes.anyway,
    )
    made = completed(blank, on, load)
    reasons = (why_context, *_why_split(on, load), _why_memory(on, load), _why_sequences(on), why_threads)
    return msgspec.structs.replace(made, reasons=(*reasons, _why_speed(made)))


def completed(plan: LoadPlan, on: Chooser, load: Load) -> LoadPlan:
    """Return the plan with everything that follows from a way of loading it; not its reasons."""
    params = {name: getattr(load.params, name) for name in load.params.__struct_fields__}
    return msgspec.structs.replace(
        plan,
        **(params | {"threads": plan.threads}),
        memory=tuple(_memory(on, load)),
        buffers=load.buffers,
        forecast=load.forecast,
        predicted=predict(load.forecast, on.correction(load)),
        where=on.where_of(load),
    )


def _memory(on: Chooser, load: Load) -> Iterator[DeviceMemory]:
    budgets = {RAM: on.budget.ram} | {card.name: card.budget for card in on.budget.cards}
    for name, needs in load.needs.items():
        yield DeviceMemory(
            name=name,
            budget_bytes=budgets.get(name, 0),
            weights_bytes=needs.weights,
            cache_bytes=needs.cache,
            compute_bytes=needs.compute,
            program_bytes=needs.program,
        )


def _types(on: Chooser, wishes: Wishes) -> tuple[CacheType, ...]:
    """Return the types of cache that may be chosen, the best one first."""
    if wishes.cache_type is not None:
        return (wishes.cache_type,)
    return ("f16", "q8_0") if wishing.may_quantize(on.header) else ("f16",)


def _asked(on: Chooser, wishes: Wishes, context: int) -> tuple[Load, str]:
    """Return the load with the context that was asked for, and why it is as it is."""
    types = _types(on, wishes)
    for cache_type in types:
        load = on.loader.load(context, cache_type)
        if on.fits(load) or cache_type == types[-1]:
            shrunk = wishes.cache_type is None and cache_type != "f16"
            how = f", with the cache in {cache_type} because it does not fit in f16" if shrunk else ""
            return load, f"Context {load.context}: as asked for{how}."
    raise AssertionError("there is always a type of cache")


def _best(on: Chooser, wishes: Wishes) -> tuple[Load, str]:
    """Return the load with the longest comfortable context, and why it is that one."""
    types = _types(on, wishes)
    guess = replace(on.loader, measure=None)  # near enough to judge speed by
    usual = guess.load(min(ENOUGH, on.header.context_length or ENOUGH), types[0])
    limit = _SLOWER * on.seconds(usual) if on.fits(usual, SPARE) else math.inf
    slower = 0

    def good(load: Load) -> bool:
        nonlocal slower
        if load.context > ENOUGH and on.seconds(load) > limit:
            slower = max(slower, load.context)
            return False
        return on.fits(load, SPARE)

    patience = _PATIENCE / on.correction(usual).prefill
    contexts = [one for one in CONTEXTS if one <= USUAL or usual.forecast.prefilling(one) <= patience]
    load = _first_good(on, _candidates(on, types, contexts), good)
    if not on.fits(load, SPARE):
        return load, f"Context {load.context}: it fits only just; closing other programs helps."
    return load, _why_context(on, load, slower > load.context)


def _candidates(
    on: Chooser, types: tuple[CacheType, ...], contexts: list[int]
) -> list[tuple[int, CacheType]]:
    """Return what may be chosen, the best first: 8 bits of cache cost less than half of the context."""
    trained = on.header.context_length
    allowed = [one for one in contexts if not trained or one <= trained] or [trained]
    return [(context, cache_type) for context in allowed for cache_type in types]


def _first_good(on: Chooser, ahead: list[tuple[int, CacheType]], good: Callable[[Load], bool]) -> Load:
    """Return the first load that is good, the last one where none is; each takes less than the one before."""
    first, last = 0, len(ahead) - 1
    load = on.loader.load(*ahead[first])
    if first == last or good(load):
        return load
    found = on.loader.load(*ahead[last])
    if not good(found):
        return found
    while last - first > 1:
        middle = (first + last) // 2
        load = on.loader.load(*ahead[middle])
        if good(load):
            last, found = middle, load
        else:
            first = middle
    return found


def _why_context(on: Chooser, load: Load, slower: bool) -> str:
    trained = on.header.context_length
    cache = "" if load.params.cache_type == "f16" else f", with the cache in {load.params.cache_type}"
    if trained and load.context >= min(trained, CONTEXTS[0]):
        why = "the model was trained on no more" if load.context >= trained else "more is seldom used"
        return f"Context {load.context}{cache}: {why}, and it fits comfortably."
    if slower:
        return f"Context {load.context}{cache}: more would push layers off the accelerator."
    if load.context >= USUAL:
        return f"Context {load.context}{cache}: enough for long conversations, and it fits comfortably."
    free = mebibytes(on.budget.ram)
    return f"Context {load.context}{cache}: more would leave too little of {free} to the rest."


def _why_split(on: Chooser, load: Load) -> Iterator[str]:
    layers, parts = load.layout, len(on.loader.shape.parts)
    if not on.budget.cards:
        return
    if not layers.n:
        yield "All layers on the processor: not one fits on an accelerator, or it would be slower there."
        return
    where = ", ".join(f"{count} on {name}" for name, count in zip(layers.devices, layers.split, strict=True))
    rest = f", {parts - layers.n} on the processor" if layers.n < parts else ""
    experts = f"; the experts of {layers.experts_in_ram} stay in RAM" if layers.experts_in_ram else ""
    yield f"Of {parts} layers (the output counts as one) {where}{rest}{experts}."


def _why_memory(on: Chooser, load: Load) -> str:
    texts = []
    for name, needs in load.needs.items():
        parts = (("weights", needs.weights), ("cache", needs.cache), ("compute", needs.compute))
        listed = ", ".join(f"{what} {mebibytes(size)}" for what, size in parts)
        program = f", the program about {mebibytes(needs.program)}" if needs.program else ""
        place = "" if name == RAM else f" on {name}"
        texts.append(f"{mebibytes(needs.total)}{place}: {listed}{program}")
    cards = "".join(
        f", {mebibytes(card.budget)} on {card.name}" for card in on.budget.cards if card.name in load.needs
    )
    return f"Needs {'; '.join(texts)} ({load.source}); {on.budget.in_words}{cards}."


def _why_sequences(on: Chooser) -> str:
    state = recurrent_bytes(on.header, 1)
    n = on.loader.n_seq_max
    if not state:
        return f"{n} sequences share the cache, so that several chats stay warm."
    return f"{n} sequences: each keeps a state of its own, {mebibytes(state)}."


def _why_speed(plan: LoadPlan) -> str:
    found = plan.predicted
    assert found is not None
    return (
        f"About {found.decode_tps:.3g} tokens a second, and {found.ttft_ms / 1000:.2g} s to the first after "
        f"a prompt of 1,000: {found.basis}."
    )


def _does_not_fit(on: Chooser, load: Load, nearest: bool) -> DoesNotFit:
    """Return the error for a load that is too large, naming the nearest context that is not."""
    longest = min(on.longest(load.params.cache_type), load.context - CELLS) if nearest else 0
    hint = "Close other programs, or choose a smaller model."
    if longest >= CELLS:
        hint = f"A context of {longest} tokens fits. {hint}"
    needs = mebibytes(on.budget.charged(dict(load.needs)))
    hint += " To try it all the same: --load-anyway"
    return DoesNotFit(
        f"{on.name} with a context of {load.context} tokens needs about {needs}, "
        f"but only {on.budget.in_words}.",
        hint=hint,
    )
