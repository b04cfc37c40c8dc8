"""The choice: from a model's header, this machine and what a person wishes to a LoadPlan with its reasons.

What a load takes llama.cpp's own allocator says (`dryrun.py`); where it does not, formulas estimate it. The
weights count in full, and once, although they are mapped from the file: pages that are read all the time must
stay in memory, and those of the file that the kernel has cached already are part of the free memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from edgechat.device.cpu import choose_threads
from edgechat.device.memory import Memory
from edgechat.device.profile import DeviceProfile
from edgechat.errors import DoesNotFit, DryRunFailed, SettingsError
from edgechat.models.header import GgufHeader
from edgechat.models.library import ResolvedModel
from edgechat.native.buffers import Breakdown, Buffer
from edgechat.native.params import CacheType, LoadParams
from edgechat.planner.compute import compute_bytes, output_bytes
from edgechat.planner.dryrun import MEMORY_LIMIT
from edgechat.planner.memory import CELLS, cache_bytes, recurrent_bytes
from edgechat.planner.plan import LoadPlan
from edgechat.text import mebibytes

CONTEXTS = (16384, 8192, 4096, 2048)
"""Contexts that are tried, in tokens. More is seldom used, and filling it takes minutes on a processor."""
FULL_PRECISION_DOWN_TO = 4096
"""A cache in 8 bits costs hardly any quality, but a short context is felt in every conversation."""
WORKER_BYTES = 256 * 2**20
"""The process around the model: interpreter, libraries, the vocabulary as llama.cpp keeps it."""
SPARE = 0.1
"""Share of the free memory that is left to other programs, unless someone wishes for more context."""


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What a person asks for instead of leaving the choice to us. None leaves it."""

    context: int | None = None
    """Tokens."""
    cache_type: CacheType | None = None
    threads: int | None = None


NO_WISHES = Wishes()


Measure = Callable[[LoadParams], Breakdown]
"""What a load takes by llama.cpp's own account, or DryRunFailed: `DryRun.ask`."""


@dataclass(frozen=True, slots=True)
class _Load:
    """One way of loading the model, and what it takes in bytes."""

    context: int
    cache_type: CacheType
    weights: int
    cache: int
    compute: int
    source: str
    """How we know, in words."""
    buffers: tuple[Buffer, ...] = ()

    @property
    def needs(self) -> int:
        return self.weights + self.cache + self.compute + WORKER_BYTES


@dataclass(frozen=True, slots=True)
class _Model:
    """A model on a machine: what a context would take, and what there is."""

    name: str
    header: GgufHeader
    memory: Memory
    n_seq_max: int
    measure: Measure | None = None

    @property
    def free(self) -> int:
        """Bytes that may be taken."""
        return self.memory.available

    @property
    def free_in_words(self) -> str:
        """'7.9 GiB are free', and under which limit."""
        limit = f" under {self.memory.bound}" if self.memory.bound else ""
        return f"{mebibytes(self.free)} are free{limit}"

    def load(self, context: int, cache_type: CacheType) -> _Load:
        """Return what it takes to load the model so; llama.cpp rounds the context up."""
        cells = -(-context // CELLS) * CELLS
        if self.measure is None:
            return self._estimate(cells, cache_type, "estimated")
        if recurrent_bytes(self.header, self.n_seq_max) > MEMORY_LIMIT // 2:
            return self._estimate(cells, cache_type, "estimated: its states are too large for a dry run")
        n = self.n_seq_max
        try:
            found = self.measure(
                LoadParams(context=cells, cache_type=cache_type, n_seq_max=n, n_outputs_max=n)
            )
        except DryRunFailed as failed:
            return self._estimate(cells, cache_type, f"estimated: {failed.message.removesuffix('.')}")
        exact = "exact, by llama.cpp's own allocator"
        return _Load(cells, cache_type, found.weights, found.cache, found.compute, exact, found.buffers)

    def _estimate(self, cells: int, cache_type: CacheType, source: str) -> _Load:
        cache = cache_bytes(self.header, cells, cache_type, n_seq_max=self.n_seq_max)
        cache += recurrent_bytes(self.header, self.n_seq_max)
        compute = compute_bytes(self.header, cells, n_seq_max=self.n_seq_max)
        compute += output_bytes(self.header, self.n_seq_max)
        return _Load(cells, cache_type, self.header.weights_bytes, cache, compute, source)

    def comfortable(self, load: _Load) -> bool:
        """Say whether the load leaves something to other programs."""
        return load.needs <= self.free * (1 - SPARE)

    def longest(self, cache_type: CacheType) -> int:
        """Return the longest context in tokens that fits at all; 0 if none does."""
        few, many = 0, (self.header.context_length or CONTEXTS[0]) // CELLS + 1
        while many - few > 1:
            middle = (few + many) // 2
            if self.load(middle * CELLS, cache_type).needs <= self.free:
                few = middle
            else:
                many = middle
        return few * CELLS


def plan(
    found: ResolvedModel,
    header: GgufHeader,
    profile: DeviceProfile,
    wishes: Wishes,
    measure: Measure | None = None,
) -> LoadPlan:
    """Return how to load this model here; without `measure` all sizes are estimated.

    Raises DoesNotFit, and SettingsError for wishes without sense.
    """
    _check(wishes, header)
    n_seq_max = 2 if recurrent_bytes(header, 1) else 4
    model = _Model(found.name, header, profile.memory, n_seq_max, measure)
    load, why_context = _asked(model, wishes, wishes.context) if wishes.context else _best(model, wishes)
    threads, why_threads = choose_threads(profile.cpu)
    if wishes.threads is not None:
        threads, why_threads = wishes.threads, f"{wishes.threads} threads, as asked for."
    return LoadPlan(
        model_path=str(found.path),
        model_name=found.name,
        context=load.context,
        threads=threads,
        n_seq_max=n_seq_max,
        n_outputs_max=n_seq_max,
        n_layers=header.n_layers,
        cache_type=load.cache_type,
        weights_bytes=load.weights,
        cache_bytes=load.cache,
        compute_bytes=load.compute,
        buffers=load.buffers,
        budget_bytes=model.free,
        reasons=(why_context, _why_memory(model, load), _why_sequences(model), why_threads),
    )


def _check(wishes: Wishes, header: GgufHeader) -> None:
    for name in ("context", "threads"):
        value = getattr(wishes, name)
        if value is not None and value < 1:
            raise SettingsError(f"{name} = {value} makes no sense.", hint=f"Ask for {name} = 1 or more.")
    trained = header.context_length
    if wishes.context and trained and wishes.context > trained:
        raise DoesNotFit(
            f"A context of {wishes.context} tokens was asked for; this model was trained on up to {trained}.",
            hint=f"Ask for a context of {trained} tokens or fewer.",
        )
    if wishes.cache_type not in (None, "f16") and not _may_quantize(header):
        raise DoesNotFit(
            f"A cache in {wishes.cache_type} takes blocks of 32 numbers, and this model's heads have "
            f"{header.key_length}.",
            hint="Leave the cache at f16.",
        )


def _may_quantize(header: GgufHeader) -> bool:
    return header.key_length % 32 == 0 and header.value_length % 32 == 0


def _types(model: _Model, wishes: Wishes) -> tuple[CacheType, ...]:
    """Return the types of cache that may be chosen, the best one first."""
    if wishes.cache_type is not None:
        return (wishes.cache_type,)
    return ("f16", "q8_0") if _may_quantize(model.header) else ("f16",)


def _asked(model: _Model, wishes: Wishes, context: int) -> tuple[_Load, str]:
    """Return the load with the context that was asked for, and why it is as it is."""
    load = model.load(context, "f16")
    for cache_type in _types(model, wishes):
        load = model.load(context, cache_type)
        if load.needs <= model.free:
            shrunk = wishes.cache_type is None and cache_type != "f16"
            how = f", with the cache in {cache_type} because it does not fit in f16" if shrunk else ""
            return load, f"Context {load.context}: as asked for{how}."
    raise _does_not_fit(model, load)


def _best(model: _Model, wishes: Wishes) -> tuple[_Load, str]:
    """Return the load with the longest comfortable context, and why it is that one."""
    load = None
    for number, load in enumerate(_candidates(model, _types(model, wishes))):
        if model.comfortable(load):
            return load, _why_context(model, load, first=number == 0)
    assert load is not None  # there is always a candidate; this is the smallest
    if load.needs <= model.free:
        return load, f"Context {load.context}: it fits only just; closing other programs helps."
    raise _does_not_fit(model, load)


def _candidates(model: _Model, types: tuple[CacheType, ...]) -> Iterator[_Load]:
    """Yield what may be chosen, the best first."""
    trained = model.header.context_length
    for context in [one for one in CONTEXTS if not trained or one <= trained] or [trained]:
        yield model.load(context, types[0])
        if context <= FULL_PRECISION_DOWN_TO:
            yield from (model.load(context, cache_type) for cache_type in types[1:])


def _why_context(model: _Model, load: _Load, first: bool) -> str:
    if first and load.context >= CONTEXTS[0]:
        return f"Context {load.context}: enough for long conversations, and it fits comfortably."
    if first:
        return f"Context {load.context}: the model was trained on {model.header.context_length} tokens."
    cache = "" if load.cache_type == "f16" else f", with the cache in {load.cache_type}"
    return (
        f"Context {load.context}{cache}: more would leave too little of {mebibytes(model.free)} to the rest."
    )


def _why_memory(model: _Model, load: _Load) -> str:
    parts = (("weights", load.weights), ("cache", load.cache), ("compute", load.compute))
    listed = ", ".join(f"{name} {mebibytes(size)}" for name, size in parts)
    program = f"the program about {mebibytes(WORKER_BYTES)}"
    return f"Needs {mebibytes(load.needs)}: {listed} ({load.source}), {program}; {model.free_in_words}."


def _why_sequences(model: _Model) -> str:
    state = recurrent_bytes(model.header, 1)
    if not state:
        return f"{model.n_seq_max} sequences share the cache, so that several chats stay warm."
    return f"{model.n_seq_max} sequences: each keeps a state of its own, {mebibytes(state)}."


def _does_not_fit(model: _Model, load: _Load) -> DoesNotFit:
    """Return the error for a load that is too large, naming the nearest context that is not."""
    longest = min(model.longest(load.cache_type), load.context - CELLS)
    hint = "Close other programs, or choose a smaller model."
    if longest >= CELLS:
        hint = f"A context of {longest} tokens fits. {hint}"
    return DoesNotFit(
        f"{model.name} with a context of {load.context} tokens needs about {mebibytes(load.needs)}, "
        f"but only {model.free_in_words}.",
        hint=hint,
    )
