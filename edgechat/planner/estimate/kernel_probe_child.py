"""Kernel probe: times llama.cpp's calls on small synthetic models, in a child process.

A call has a fixed cost, a cost per layer, a cost per weight that depends on its type, and a cost for
computing attention to each earlier cell. Models of four shapes separate these costs. Their weights are a hole
in a sparse file, which llama.cpp reads, repacks and sends to accelerators like real weights. Computing with
zeros takes just as long.

A model's attention is measured with its own heads, in a layer with hardly any weights, with and without flash
attention. The two alternate, so that noise affects both equally.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import msgspec

from edgechat.base.process.ask import answer
from edgechat.device.speed import (
    ATTENTION_ROWS,
    ROWS,
    AttentionCurve,
    AttentionShape,
    DeviceSpeed,
    Seconds,
    ThreadTrial,
    attention_name,
)
from edgechat.models.formats.header import ModelHeader, ModelTensor
from edgechat.models.formats.quants import GgmlType
from edgechat.models.formats.skeleton import write_skeleton
from edgechat.native import logs
from edgechat.native.handles import Context, Model
from edgechat.native.params import AttentionKind, CacheType, LoadParams
from edgechat.planner.estimate.rates import TIME_LIMIT, USUAL, ProbeTask

_TILES = 64
"""Calls with at least this many tokens are computed in tiles, so each weight is read once for many tokens."""
_HEAD = 128
"""Number of channels per head."""
_DEPTH = 1024
_ATTENDED: dict[tuple[CacheType, AttentionKind], int] = {
    ("f16", "flash"): 2048,
    ("f16", "plain"): 2048,
    ("q8_0", "flash"): 1024,
}
"""The kinds of attention to measure, each with enough cells to show a slope, but few enough to fill quickly.

Only flash attention can read an 8-bit cache, which takes several times as long to fill.
"""
_ROUNDS, _MOST_ROUNDS = 2, 4
"""How many times caches are filled: normally, and at most if other programs interfere."""
_BLOCK = 32
"""Number of values in a block of Q8_0."""
_VOCAB = 256
_SECONDS, _PATIENCE = 0.02, 0.12
"""Seconds to spend repeating calls of one size: normally, and at most if other programs interfere."""
_LEAST_CALLS, _MOST_CALLS = 3, 300
_LONG = 0.3
"""Seconds after which calls are no longer repeated, even if there have been only a few."""
_ENOUGH = 0.5 * TIME_LIMIT
"""Seconds after which the measurement of the remaining weight types is put off until a model uses them."""
_WARM_UP = 0.15
_WORTH = 0.95
"""Another thread count is chosen only if it takes less than this fraction of the usual count's time."""
_UNDISTURBED = 0.75
"""Minimum fraction of CPU time that our threads use on a quiet machine, as they may wait for each other."""
_ADDED_LAYERS = 16
_LEAST = 1e-15
"""Lower limit for all results, in seconds."""
_FEW = 8
"""Minimum number of heads for measuring attention. The time for more heads is proportional."""
_MOST_BESIDES = 0.4
"""Maximum fraction of a call's time to subtract as overhead, in case that was measured on a busy machine."""


@dataclass(frozen=True, slots=True)
class ProbeShape:
    """The shape of a synthetic model."""

    width: int
    inner: int
    heads: int
    layers: int = 1
    kv_heads: int = 0
    """Number of KV heads; 0 means a quarter of `heads`."""
    keys: int = _HEAD
    values: int = _HEAD

    @property
    def weights(self) -> int:
        """Number of weights in all layers together."""
        channels = (self.keys + self.values) * (self.heads + self._kv_heads)
        return self.layers * self.width * (channels + 3 * self.inner)

    def beyond(self, n_bytes: int, kind: GgmlType) -> ProbeShape:
        """Return the shape with as many layers as fit in `n_bytes` of weights, but at least one."""
        return replace(self, layers=max(1, n_bytes // kind.row_bytes(self.weights)))

    @property
    def attention(self) -> int:
        """Floating-point operations that attention takes per token and cell."""
        return 2 * self.layers * self.heads * (self.keys + self.values)

    @property
    def _kv_heads(self) -> int:
        return self.kv_heads or max(1, self.heads // 4)

    def header(self, kind: GgmlType) -> ModelHeader:
        """Return the header of a model of this shape with weights of this type."""
        tensors: list[ModelTensor] = []

        def add(name: str, *shape: int, kind: GgmlType = GgmlType.F32) -> None:
            n = math.prod(shape)
            tensors.append(ModelTensor(name, shape, kind, 0, kind.row_bytes(n)))

        queries, keys, values = (
            self.heads * self.keys,
            self._kv_heads * self.keys,
            self._kv_heads * self.values,
        )
        add("token_embd.weight", self.width, _VOCAB)
        add("output_norm.weight", self.width)
        add("output.weight", self.width, _VOCAB)
        for layer in range(self.layers):
            block = f"blk.{layer}."
            add(f"{block}attn_norm.weight", self.width)
            add(f"{block}attn_q.weight", self.width, queries, kind=kind)
            add(f"{block}attn_k.weight", self.width, keys, kind=kind)
            add(f"{block}attn_v.weight", self.width, values, kind=kind)
            add(f"{block}attn_output.weight", self.heads * self.values, self.width, kind=kind)
            add(f"{block}ffn_norm.weight", self.width)
            add(f"{block}ffn_gate.weight", self.width, self.inner, kind=kind)
            add(f"{block}ffn_up.weight", self.width, self.inner, kind=kind)
            add(f"{block}ffn_down.weight", self.inner, self.width, kind=kind)
        metadata: dict[str, int | float | str] = {
            "general.architecture": "llama",
            "llama.block_count": self.layers,
            "llama.context_length": 2 * _DEPTH,
            "llama.embedding_length": self.width,
            "llama.feed_forward_length": self.inner,
            "llama.attention.head_count": self.heads,
            "llama.attention.head_count_kv": self._kv_heads,
            "llama.attention.key_length": self.keys,
            "llama.attention.value_length": self.values,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.rope.dimension_count": self.keys,
            "llama.vocab_size": _VOCAB,
        }
        return ModelHeader(
            path="the probe",
            version=3,
            metadata=dict(metadata),
            tensors=tuple(tensors),
            data_offset=0,
            alignment=32,
            file_size=0,
        )


_EMPTY = ProbeShape(width=256, inner=256, heads=1)
_ATTENDING = ProbeShape(width=256, inner=256, heads=8)
_SMALL = ProbeShape(width=1024, inner=2816, heads=8)
"""A shape whose weights fit into CPU caches."""
_BARE = ProbeShape(width=64, inner=64, heads=1)
"""A shape that takes hardly any time for anything except attention."""
_LARGE = ProbeShape(width=4096, inner=11008, heads=32)
"""A shape so large that an accelerator spends more time computing than starting the call."""


@dataclass(slots=True)
class ThreadUsage:
    """CPU time used by the probe's threads, in seconds."""

    threads: int
    wall: float = 0.0
    busy: float = 0.0

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs used much of the CPU time."""
        return self.busy < _UNDISTURBED * self.threads * self.wall


@dataclass(slots=True)
class ProbeModel:
    """A loaded synthetic model."""

    context: Context
    usage: ThreadUsage

    def seconds(self, rows: int, depth: int = 0) -> float:
        """Return how many seconds a call of `rows` tokens takes with `depth` cells before it.

        This is the median of several calls, or the shortest of a larger number if other programs interfere.
        """
        context = self.context
        context.clear()
        for start in range(0, depth, ROWS[-1]):
            context.decode([(0, start, [1] * ROWS[-1], 0)])
        return self.again(rows, depth)

    def filling(self, depth: int) -> list[float]:
        """Fill `depth` cells in calls of `ROWS[-1]` tokens, and return how many seconds each call took."""
        self.context.clear()
        calls: list[float] = []
        busy = time.process_time()
        for start in range(0, depth, ROWS[-1]):
            begun = time.perf_counter()
            self.context.decode([(0, start, [1] * ROWS[-1], 0)])
            calls.append(time.perf_counter() - begun)
        self.usage.busy += time.process_time() - busy
        self.usage.wall += sum(calls)
        return calls

    def again(self, rows: int, depth: int) -> float:
        """Do the same as `seconds`, with `depth` cells already filled. Any cells after them are freed."""
        context = self.context
        part = [(0, depth, [1] * rows, rows)]
        calls: list[float] = []
        now = ThreadUsage(self.usage.threads)

        def call() -> float:
            context.remove(0, depth)
            busy, begun = time.process_time(), time.perf_counter()
            context.decode(part)
            taken = time.perf_counter() - begun
            now.busy += time.process_time() - busy
            now.wall += taken
            return taken

        if (first := call()) > _PATIENCE:
            calls.append(first)  # the first call's extra cost hardly matters here
        else:
            now = ThreadUsage(self.usage.threads)
        while (len(calls) < _LEAST_CALLS and now.wall < _LONG) or (
            len(calls) < _MOST_CALLS and now.wall < (_PATIENCE if now.is_disturbed else _SECONDS)
        ):
            calls.append(call())
        self.usage.busy += now.busy
        self.usage.wall += now.wall
        return min(calls) if now.is_disturbed else statistics.median(calls)


@dataclass(slots=True)
class KernelProbe:
    """Measures one device."""

    task: ProbeTask
    folder: Path
    threads: int
    usage: ThreadUsage = field(init=False)
    _n_models: int = 0

    def __post_init__(self) -> None:
        self.usage = ThreadUsage(self.threads)

    @contextmanager
    def model(
        self,
        shape: ProbeShape,
        kind: GgmlType,
        *,
        context: int = 2 * _DEPTH,
        cache_type: CacheType = "f16",
        attention: AttentionKind = "flash",
    ) -> Iterator[ProbeModel]:
        """Load a synthetic model. context: number of cells."""
        self._n_models += 1
        path = self.folder / f"{self.threads}-{self._n_models}.gguf"
        write_skeleton(shape.header(kind), path)
        on_device = bool(self.task.device)
        params = LoadParams(
            context=context,
            cache_type=cache_type,
            flash_attention=attention == "flash",
            threads=self.threads,
            n_batch=ROWS[-1],
            n_ubatch=ROWS[-1],
            n_seq_max=1,
            n_outputs_max=ROWS[-1],
            devices=(self.task.device,) if on_device else (),
            split=(shape.layers + 1,) if on_device else (),
            rpc=self.task.rpc if on_device else (),
        )
        model = Model(path, params)
        try:
            with closing(Context(model, params)) as opened:
                yield ProbeModel(opened, self.usage)
        finally:
            model.close()
            path.unlink()

    def warm_up(self) -> None:
        """Keep the threads busy for a moment, so that the system gives each of them its own core."""
        with self.model(_EMPTY, GgmlType.F16) as model:
            end = time.perf_counter() + _WARM_UP
            while time.perf_counter() < end:
                model.seconds(1)

    def trial(self) -> ThreadTrial:
        """Time calls with the current number of threads."""
        self.warm_up()
        with self.model(_SMALL, GgmlType.Q4_K) as model:
            return ThreadTrial(self.threads, model.seconds(1), model.seconds(64))

    def base(self) -> DeviceSpeed:
        """Measure everything except the kernels."""
        with self.model(_EMPTY, GgmlType.F16) as model:
            one = model.seconds(1)
        with self.model(replace(_EMPTY, layers=1 + _ADDED_LAYERS), GgmlType.F16) as model:
            layer = max(0.0, (model.seconds(1) - one) / _ADDED_LAYERS)
        attention: list[float] = []
        with self.model(_ATTENDING, GgmlType.F16) as model:
            for rows in ROWS:
                deeper = model.seconds(rows, _DEPTH) - model.seconds(rows)
                attention.append(max(_LEAST, deeper / (_DEPTH * rows * _ATTENDING.attention)))
        call = max(0.0, one - layer)
        is_card = not self.task.is_processor
        kind = GgmlType.F16 if is_card else GgmlType.F32
        shape = _LARGE if is_card else _SMALL.beyond(self.task.buffer, kind)
        with self.model(shape, kind) as model:
            seconds = _without(model.seconds(1), call + shape.layers * layer)
        return DeviceSpeed(
            bandwidth=kind.row_bytes(shape.weights) / seconds,
            kernels={},
            attention=tuple(attention),
            call=call,
            layer=layer,
            threads=self.threads,
        )

    def kernel(self, kind: GgmlType, base: DeviceSpeed) -> Seconds:
        """Return the seconds per weight of this type, for calls of `ROWS` tokens.

        In short calls, reading the weights and computing with them takes longer than either alone, so the two
        are timed together.
        """
        if not self.task.is_processor:
            return self._curve(_LARGE, kind, base, range(len(ROWS)))
        short, large = ROWS.index(_TILES), _SMALL.beyond(min(USUAL, self.task.buffer), kind)
        return (
            *self._curve(large, kind, base, range(short)),
            *self._curve(_SMALL, kind, base, range(short, len(ROWS))),
        )

    def _curve(self, shape: ProbeShape, kind: GgmlType, base: DeviceSpeed, at: range) -> Seconds:
        curve: list[float] = []
        with self.model(shape, kind) as model:
            for row in at:
                rows = ROWS[row]
                besides = base.call + shape.layers * base.layer
                besides += base.attention[row] * rows * _attended(rows) * shape.attention
                curve.append(_without(model.seconds(rows), besides) / shape.weights)
        return tuple(curve)

    def attention(self, heads: AttentionShape, base: DeviceSpeed) -> dict[str, AttentionCurve]:
        """Return the curves for one kind of attention head, keyed by name."""
        whole = heads.keys % _BLOCK == heads.values % _BLOCK == 0
        ways = [(way, depth) for way, depth in _ATTENDED.items() if whole or way[0] == "f16"]
        times = _times_fewer(heads)
        shape = replace(
            _BARE,
            heads=heads.heads // times,
            kv_heads=heads.kv_heads // times,
            keys=heads.keys,
            values=heads.values,
        )
        with ExitStack() as stack:
            models = [
                stack.enter_context(
                    self.model(
                        shape, GgmlType.F16, context=depth + ROWS[-1], cache_type=cache_type, attention=kind
                    )
                )
                for (cache_type, kind), depth in ways
            ]
            filled: list[list[list[float]]] = []
            while len(filled) < _ROUNDS or (len(filled) < _MOST_ROUNDS and self.usage.is_disturbed):
                filled.append([model.filling(depth) for model, (_, depth) in zip(models, ways, strict=True)])
            return {
                attention_name(heads, cache_type, kind): _attending(
                    model, shape, base, [min(calls) for calls in zip(*rounds, strict=True)], times
                )
                for model, ((cache_type, kind), _), *rounds in zip(models, ways, *filled, strict=True)
            }


def _times_fewer(heads: AttentionShape) -> int:
    """Return a common divisor of heads and KV heads that leaves few heads, but no fewer than `_FEW`."""
    common = math.gcd(heads.heads, heads.kv_heads)
    return next(n for n in range(common, 0, -1) if common % n == 0 and (n == 1 or heads.heads >= n * _FEW))


def _attending(
    model: ProbeModel, shape: ProbeShape, base: DeviceSpeed, filling: list[float], times: int
) -> AttentionCurve:
    """Return the curve measured with a filled model, scaled up to `times` as many heads.

    filling: seconds for each of the calls that filled the model's cache.
    """
    depth, rows = len(filling) * ROWS[-1], ATTENTION_ROWS[:-1]
    deep, shallow = ([model.again(n, at) for n in rows] for at in (depth, ROWS[-1]))
    per_cell = [(more - less) / (depth - ROWS[-1]) for less, more in zip(shallow, deep, strict=True)]
    starts = range(0, depth, ROWS[-1])
    pairs = combinations(zip(starts, filling, strict=True), 2)
    # The median of all slopes (Theil 1950, Sen 1968) is robust against individual disturbed calls.
    slope = statistics.median((more - less) / (end - start) for (start, less), (end, more) in pairs)
    at_first = statistics.median(
        seconds - slope * start for start, seconds in zip(starts, filling, strict=True)
    )
    first = [less - cell * ROWS[-1] for less, cell in zip(shallow, per_cell, strict=True)]
    besides = [base.call + base.layer + shape.weights * _kernel(base, n) for n in ATTENTION_ROWS]
    return AttentionCurve(
        tuple(times * max(0.0, seconds - n) for seconds, n in zip([*first, at_first], besides, strict=True)),
        tuple(times * max(_LEAST, seconds) for seconds in [*per_cell, slope]),
    )


def _kernel(base: DeviceSpeed, rows: int) -> float:
    """Return the seconds per weight in the models used for measuring attention; 0 if unknown."""
    kernel = base.kernels.get(GgmlType.F16.name)
    return 0.0 if kernel is None else kernel[ROWS.index(rows)]


def _without(seconds: float, besides: float) -> float:
    """Return how many seconds of a call are spent on matrix products. besides: all other seconds."""
    return seconds - min(besides, _MOST_BESIDES * seconds)


def _attended(rows: int) -> int:
    """Return how many cells each row of a prompt's first call attends to, given llama.cpp's tiles."""
    return 0 if rows < _TILES else max(256, rows)


def measure(task: ProbeTask) -> DeviceSpeed:
    """Carry out a task. On a slow device, measure only some of the types, but at least one."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="edgechat-") as name:
        folder, before = Path(name), task.before
        if before is not None:
            probe, base = KernelProbe(task, folder, before.threads), before
            probe.warm_up()
        else:
            probe, trials = _fastest(task, folder)
            base = msgspec.structs.replace(probe.base(), trials=trials)
        kernels: dict[str, Seconds] = {}
        for kind in task.types:
            if not kernels or time.perf_counter() < begun + _ENOUGH:
                kernels[kind.name] = probe.kernel(kind, base)
        attentions = {} if task.shape is None else probe.attention(task.shape, base)
    usage = probe.usage
    return msgspec.structs.replace(
        base,
        kernels=base.kernels | kernels,
        attentions=base.attentions | attentions,
        disturbed=base.disturbed or (not task.device and usage.is_disturbed),
    )


def _fastest(task: ProbeTask, folder: Path) -> tuple[KernelProbe, tuple[ThreadTrial, ...]]:
    """Return a probe with the best number of threads: the usual one unless another is clearly faster."""
    probes = [KernelProbe(task, folder, threads) for threads in task.threads]
    if task.device or len(probes) == 1:
        probes[0].warm_up()
        return probes[0], ()
    trials = tuple(probe.trial() for probe in probes)
    best = min(range(len(trials)), key=lambda at: trials[at].score)
    return probes[best if trials[best].score < _WORTH * trials[0].score else 0], trials


def main() -> None:
    """Read a ProbeTask and answer with a DeviceSpeed."""
    logs.install()
    decode, encode = msgspec.msgpack.decode, msgspec.msgpack.encode
    answer(lambda request: encode(measure(decode(request, type=ProbeTask))))
