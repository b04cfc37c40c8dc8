"""A discrete-event simulation of engines that serve many people, used by `benchmarks.fleet`.

A machine batches as `edgechat.engine.scheduling` does: each call contains one token from every stream, plus
as many prompt chunks as are allowed. KV cells are limited: idle conversations keep theirs until they are
evicted, least recently used first; when nothing else is left, the youngest request is preempted. Calls with
only streams are combined until something happens, so that hours can be simulated in seconds. Times are in
seconds, sizes in tokens. The same inputs give the same results.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

HEADROOM = 32
"""Cells reserved for each request's growth before another request may join, as in the scheduler."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What an engine's calls cost: C(n), plus the costs of depth and prompts."""

    name: str
    origin: str
    steps: tuple[tuple[int, float], ...]
    """Pairs of n and the duration in seconds of a call with one token from each of n streams, at depth 0."""
    cell_seconds: float
    """Seconds added for each cell that the streams attend to."""
    token_seconds: float
    """Seconds added for each prompt token in a call."""
    pair_seconds: float
    """Seconds added for each pair of a prompt token and a cell before it."""
    cells: int
    """Capacity of the KV cache in tokens."""
    cell_bytes: int
    slots: int = 32
    """Maximum number of requests computed at once."""

    def __post_init__(self) -> None:
        counts = [n for n, _ in self.steps]
        if not counts or counts != sorted(set(counts)) or min(seconds for _, seconds in self.steps) <= 0:
            raise ValueError(f"{self.name}: the costs of calls must be positive, in the order of streams")

    def streams(self, n: int) -> float:
        """Return C(n), interpolated between measurements and extrapolated beyond them."""
        counts = [count for count, _ in self.steps]
        at = bisect_left(counts, n)
        if at < len(counts) and counts[at] == n:
            return self.steps[at][1]
        if at == 0 or len(counts) == 1:
            return self.steps[0][1]
        (n0, s0), (n1, s1) = self.steps[min(at, len(counts) - 1) - 1 :][:2]
        return s0 + (s1 - s0) * (n - n0) / (n1 - n0)

    def call(self, n: int, cells: int = 0, chunks: tuple[tuple[int, int], ...] = ()) -> float:
        """Return how long a call takes, in seconds, with n streams that attend to `cells`, and prompt chunks.

        chunks: the (depth, tokens) of each chunk.
        """
        seconds = self.streams(max(n, 1)) + self.cell_seconds * cells
        for depth, tokens in chunks:
            seconds += self.token_seconds * tokens + self.pair_seconds * tokens * (depth + tokens / 2)
        # C(1) already includes one token, which without streams is the prompt's first.
        return seconds - (0 if n else self.token_seconds)


@dataclass(frozen=True, slots=True)
class Policy:
    """How a machine fills its calls."""

    call_limit: float = 0.25
    """Maximum duration of a call with prompts and streams, in seconds ..."""
    calls: float = 3.0
    """... or this many times the duration of a call with the streams alone, if that is longer."""
    mixes: bool = True
    """Whether prompts and streams share calls; if not, streams wait while prompts are read."""
    n_batch: int = 512
    """Maximum number of tokens in a call."""

    def prompt_tokens(self, costs: Costs, n: int) -> int:
        """Return how many prompt tokens fit in a call alongside n streams, as CallCost.prompt_tokens does."""
        if not (n and self.mixes):
            return self.n_batch
        base = costs.streams(n)
        left = 0.9 * max(self.call_limit, self.calls * base) - base
        return max(min(int(left / costs.token_seconds), self.n_batch - n), 4)


@dataclass(frozen=True, slots=True)
class Habit:
    """A person's habits: medians of log-normal lengths, and the pace."""

    name: str
    per_hour: float
    """Questions per hour, not counting the time during which replies are generated."""
    first: int
    """Tokens in a conversation's first question, not counting the system prompt ..."""
    prompt: int
    """... and in every later one."""
    reply: int
    turns: int
    """Questions in each conversation."""
    system: int = 200
    """Tokens that all conversations start with; they are cached on every machine."""
    spread: float = 0.8
    """Standard deviation of the logarithms of lengths; 0 makes all lengths equal the median."""
    context: int = 16384


@dataclass(slots=True, eq=False)
class Request:
    """A question and the state of its reply."""

    person: int
    conversation: int
    prompt: int
    reply: int
    new: int
    """Prompt tokens that no machine can have cached."""
    asked: float
    pending: int = 0
    """Prompt tokens still to be computed."""
    length: int = 0
    written: int = 0
    first: float = 0.0
    last: float = 0.0
    """`first` and `last`: when the first and the latest token arrived."""
    n_computed: int = 0
    """Prompt tokens that were not cached when the request was first admitted."""


class Person:
    """Asks, reads, and asks again; the questions depend only on the seed."""

    def __init__(self, number: int, habit: Habit, seed: int) -> None:
        self._number, self._habit = number, habit
        self._random = random.Random(f"{seed}-{number}")
        self._history, self._turns, self._conversation = 0, 0, 0

    def pause(self) -> float:
        """Return the seconds until the next question."""
        return self._random.expovariate(self._habit.per_hour / 3600)

    def ask(self, now: float) -> Request:
        """Return the next question."""
        habit = self._habit
        length = self._length(habit.prompt if self._turns else habit.first)
        reply = self._length(habit.reply)
        if self._turns >= habit.turns or self._history + length + reply > habit.context:
            self._history, self._turns = 0, 0
            length = self._length(habit.first)
        if self._turns == 0:
            self._conversation += 1
            self._history = habit.system
        length = min(length, habit.context - self._history - 1)
        reply = min(reply, habit.context - self._history - length)
        prompt = self._history + length
        self._history, self._turns = prompt + reply, self._turns + 1
        conversation = self._number * 1_000_000 + self._conversation
        return Request(self._number, conversation, prompt, reply, length, now)

    def _length(self, median: int) -> int:
        return max(1, round(median * math.exp(self._random.gauss(0, self._habit.spread))))


class Once(Person):
    """Asks a single question of fixed length; many such people form an open (Poisson) arrival process."""

    def __init__(self, number: int, at: float, prompt: int, reply: int) -> None:
        self._at: float | None = at
        self._request = Request(number, number, prompt, reply, prompt, at)

    def pause(self) -> float:
        at, self._at = self._at, None
        return math.inf if at is None else at

    def ask(self, now: float) -> Request:
        return self._request


def poisson(rate: float, seconds: float, prompt: int, reply: int, seed: int) -> list[Person]:
    """Return people who ask once each, at `rate` per second."""
    source, at = random.Random(seed), 0.0
    people: list[Person] = []
    while (at := at + source.expovariate(rate)) < seconds:
        people.append(Once(len(people), at, prompt, reply))
    return people


@dataclass(slots=True)
class Run:
    """Calls that a machine runs: one with prompts, or several with streams alone."""

    start: float
    streams: list[Request]
    chunks: list[tuple[Request, int]]
    first: float
    """Duration of the first call in seconds; each later call takes `growth` longer than the one before."""
    growth: float
    n: int

    def seconds(self, n: int) -> float:
        """Return how long the first n calls take."""
        return n * self.first + self.growth * n * (n - 1) / 2

    def calls_until(self, now: float) -> int:
        """Return how many calls have ended or are running at a given time."""
        return bisect_left(range(1, self.n), now - self.start, key=self.seconds) + 1


@dataclass
class Machine:
    """An engine, with its queue, its KV cache and its statistics."""

    costs: Costs
    policy: Policy
    system: int
    only_prefill: bool = False
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    idle: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """Cells of idle conversations, least recently used first."""
    run: Run | None = None
    version: int = 0
    busy: float = 0.0
    prefilled: int = 0
    preempted: int = 0
    _idle_cells: int = 0

    @property
    def load(self) -> int:
        """The number of requests on this machine."""
        return len(self.waiting) + len(self.running)

    def own(self, length: int) -> int:
        """Return how many cells a conversation occupies, not counting those for the system prompt."""
        return max(length - self.system, 0)

    @property
    def free(self) -> int:
        """The number of free cells."""
        used = sum(self.own(request.length) for request in self.running)
        return self.costs.cells - self.system - used - self._idle_cells

    def keep(self, request: Request) -> None:
        """Retain the cells of a finished request."""
        self.running.remove(request)
        self.forget(request.conversation)
        self.idle[request.conversation] = request.length
        self._idle_cells += self.own(request.length)

    def forget(self, conversation: int) -> None:
        """Free an idle conversation's cells, or hand them over to the request that continues it."""
        self._idle_cells -= self.own(self.idle.pop(conversation, 0))

    def cached(self, request: Request) -> int:
        """Return how much of the start of the prompt is cached here."""
        return min(max(self.idle.get(request.conversation, 0), self.system), request.prompt - 1)

    def _can_join(self, request: Request) -> bool:
        if len(self.running) >= self.costs.slots:
            return False
        grown = sum(self.own(one.length) + one.pending + HEADROOM for one in self.running)
        wanted = grown + self.own(request.prompt + request.written) + HEADROOM
        return not self.running or wanted <= self.costs.cells - self.system

    def _admit(self) -> None:
        while self.waiting and self._can_join(self.waiting[0]):
            request = self.waiting.popleft()
            cached = self.cached(request)
            self.forget(request.conversation)
            if not request.written or request.pending:  # otherwise its cells came over the link
                request.length, request.pending = cached, request.prompt + request.written - cached
                request.n_computed = request.n_computed or request.pending
            self.running.append(request)

    def plan(self, now: float) -> Run | None:
        """Return the next calls, or None if there is nothing to do."""
        self._admit()
        prompts = [request for request in self.running if request.pending]
        streams = [request for request in self.running if not request.pending]
        if prompts and not self.policy.mixes:
            streams = []
        chunks = self._chunks(prompts, self.policy.prompt_tokens(self.costs, len(streams)))
        if not (streams or chunks):
            return None
        n = 1 if chunks else min(request.reply - request.written for request in streams)
        while (free := self.free) < len(streams) + sum(size for _, size in chunks):
            if self.idle:
                self.forget(next(iter(self.idle)))
            elif len(self.running) > 1:
                self._preempt()
                return self.plan(now)
            else:
                raise ValueError(f"{self.costs.name}: a conversation does not fit into the KV cache")
        if streams:
            n = min(n, free // len(streams))
        cells = sum(request.length for request in streams)
        depths = tuple((request.length, size) for request, size in chunks)
        first = self.costs.call(len(streams), cells, depths)
        return Run(now, streams, chunks, first, self.costs.cell_seconds * len(streams), n)

    def _chunks(self, prompts: list[Request], left: int) -> list[tuple[Request, int]]:
        """Return chunks of prompts. If the shortest prompt is not the first, it gets half of the tokens."""
        chunks: list[tuple[Request, int]] = []
        if prompts and (shortest := min(prompts, key=lambda one: one.pending)) is not prompts[0]:
            chunks.append((shortest, min(shortest.pending, max(left // 2, 1))))
            left -= chunks[0][1]
            prompts = [request for request in prompts if request is not shortest]
        for request in prompts:
            if left <= 0:
                break
            chunks.append((request, min(request.pending, left)))
            left -= chunks[-1][1]
        return chunks

    def _preempt(self) -> None:
        youngest = self.running.pop()
        youngest.length, youngest.pending = 0, 0
        if youngest.written:  # its reply so far is computed again, along with the prompt
            youngest.pending = youngest.prompt + youngest.written
        self.waiting.appendleft(youngest)
        self.preempted += 1


@dataclass(frozen=True, slots=True)
class Link:
    """A network connection between machines."""

    bits: float = 1e9
    """Bits per second."""
    delay: float = 0.0003


@dataclass(slots=True)
class Report:
    """The result of a simulation. Questions asked during the warm-up are not counted."""

    first: list[float] = field(default_factory=list)
    """Seconds from each question to its first token."""
    per_token: list[float] = field(default_factory=list)
    """Each reply's mean gap between tokens."""
    gaps: list[float] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    """How many gaps of each length there were."""
    written: int = 0
    new: int = 0
    cached: int = 0
    computed: int = 0
    """Prompt tokens: `new` ones could not be cached, `cached` ones were, and `computed` ones were not."""
    prefilled: int = 0
    """All prompt tokens computed, including the warm-up and those recomputed after preemption."""
    preempted: int = 0
    busy: float = 0.0
    """Fraction of the time during which the machines were busy."""
    sent: int = 0
    """Bytes of KV cells sent over links."""

    def first_token(self, q: float) -> float:
        """Return a quantile of the time to the first token."""
        return float(np.quantile(self.first, q)) if self.first else math.inf

    def gap(self, q: float) -> float:
        """Return a quantile of the gaps between tokens."""
        if not self.gaps:
            return 0.0
        order = np.argsort(self.gaps)
        total = np.cumsum(np.asarray(self.weights)[order])
        return float(np.asarray(self.gaps)[order][np.searchsorted(total, q * total[-1])])

    def attained(self, first: float, per_token: float) -> float:
        """Return the fraction of replies that met both limits, as DistServe counts them."""
        pairs = zip(self.first, self.per_token, strict=True)
        return sum(a <= first and b <= per_token for a, b in pairs) / max(len(self.first), 1)


EDGECHAT = Policy()
WHOLE = Policy(mixes=False, n_batch=16384)
"""Whole prompts first, as vLLM did when DistServe and Sarathi-Serve were compared with it."""
GIGABIT = Link()


class Fleet:
    """Machines behind a router.

    `router` is "random", "least" (fewest requests), or "affinity": the machine that has most of the
    conversation cached, unless it has over `patience` more requests than the least loaded one. The first
    `n_prefill` machines only prefill; they send the KV cells over a link to one of the others, which decode.
    """

    def __init__(
        self,
        costs: Costs,
        people: list[Person],
        *,
        n: int = 1,
        router: str = "affinity",
        patience: int = 4,
        policy: Policy = EDGECHAT,
        system: int = 0,
        n_prefill: int = 0,
        link: Link = GIGABIT,
        seed: int = 0,
    ) -> None:
        if router not in ("random", "least", "affinity") or not 0 <= n_prefill < n:
            raise ValueError("no such router, or no machine left to write")
        self._people, self._router, self._patience, self._link = people, router, patience, link
        self._random = random.Random(f"router-{seed}")
        self.machines = [Machine(costs, policy, system, only_prefill=i < n_prefill) for i in range(n)]
        self._readers = self.machines[:n_prefill] or self.machines
        self._writers = self.machines[n_prefill:]
        self._link_free = [0.0] * len(self._writers)
        self._expected = [0] * len(self._writers)
        self._events: list[tuple[float, int, str, object]] = []
        self._counter: Iterator[int] = iter(range(2**62))
        self._warm = 0.0
        self.report = Report()

    def simulate(self, seconds: float, warm: float = 0.0) -> Report:
        """Simulate that many seconds after a warm-up; return the report."""
        self._warm, end = warm, warm + seconds
        for person in self._people:
            self._push(person.pause(), "ask", person)
        while self._events and self._events[0][0] <= end:
            now, _, kind, what = heapq.heappop(self._events)
            if kind == "ask":
                assert isinstance(what, Person)
                self._arrive(what.ask(now), now)
            elif kind == "sent":
                assert isinstance(what, tuple)
                at, request = what
                self._expected[at] -= 1
                self._enqueue(self._writers[at], request, now)
            else:
                assert isinstance(what, tuple)
                machine, version = what
                if machine.version == version:
                    self._complete(machine, now)
        self.report.preempted = sum(machine.preempted for machine in self.machines)
        self.report.prefilled = sum(machine.prefilled for machine in self.machines)
        self.report.busy = sum(machine.busy for machine in self.machines) / (end * len(self.machines))
        return self.report

    def _push(self, at: float, kind: str, what: object) -> None:
        if at < math.inf:
            heapq.heappush(self._events, (at, next(self._counter), kind, what))

    def _choose(self, machines: list[Machine], request: Request, expected: list[int]) -> int:
        if self._router == "random":
            return self._random.randrange(len(machines))
        loads = [machine.load + more for machine, more in zip(machines, expected, strict=True)]
        least = min(range(len(machines)), key=lambda at: (loads[at], len(machines[at].idle), at))
        if self._router == "affinity":
            best = max(range(len(machines)), key=lambda at: machines[at].idle.get(request.conversation, 0))
            holds = machines[best].idle.get(request.conversation, 0) > 0
            if holds and loads[best] - loads[least] <= self._patience:
                return best
        return least

    def _arrive(self, request: Request, now: float) -> None:
        readers = self._readers
        machine = readers[self._choose(readers, request, [0] * len(readers))]
        self._enqueue(machine, request, now)

    def _enqueue(self, machine: Machine, request: Request, now: float) -> None:
        machine.waiting.append(request)
        run = machine.run
        if run is None:
            self._start(machine, now)
        elif run.n > 1 and (calls := run.calls_until(now)) < run.n:
            run.n = calls
            self._schedule(machine)

    def _start(self, machine: Machine, now: float) -> None:
        machine.run = machine.plan(now)
        if machine.run is not None:
            self._schedule(machine)

    def _schedule(self, machine: Machine) -> None:
        assert machine.run is not None
        machine.version += 1
        end = machine.run.start + machine.run.seconds(machine.run.n)
        self._push(end, "done", (machine, machine.version))

    def _complete(self, machine: Machine, now: float) -> None:
        run = machine.run
        assert run is not None
        machine.busy += now - run.start
        for request in run.streams:
            self._gap(request, run.start + run.first - request.last, 1)
            if run.n > 1:
                self._gap(request, (run.seconds(run.n) - run.first) / (run.n - 1), run.n - 1)
            request.length += run.n
            request.written += run.n
            request.last = now
        for request, size in run.chunks:
            machine.prefilled += size
            request.length += size
            request.pending -= size
            if request.pending:
                continue
            if request.written:  # it was preempted and is continuing
                self._gap(request, now - request.last, 1)
            else:
                request.first = now
            request.written += 1
            request.last = now
        for request in [one for one in machine.running if one.written and not one.pending]:
            if request.written >= request.reply:
                self._finish(machine, request, now)
            elif machine.only_prefill:
                self._send(machine, request, now)
        self._start(machine, now)

    def _finish(self, machine: Machine, request: Request, now: float) -> None:
        machine.keep(request)
        if request.asked >= self._warm:
            report = self.report
            report.first.append(request.first - request.asked)
            report.per_token.append((request.last - request.first) / max(request.written - 1, 1))
            report.written += request.written
            report.new += request.new
            report.cached += request.prompt - request.n_computed
            report.computed += request.n_computed
        person = self._people[request.person]
        self._push(now + person.pause(), "ask", person)

    def _send(self, machine: Machine, request: Request, now: float) -> None:
        """Send the KV cells that the decoding machine lacks; a link carries one request at a time."""
        machine.keep(request)
        at = self._choose(self._writers, request, self._expected)
        missing = request.length - max(self._writers[at].idle.get(request.conversation, 0), machine.system)
        n_bytes = max(missing, 0) * machine.costs.cell_bytes
        self.report.sent += n_bytes
        self._link_free[at] = max(self._link_free[at], now) + 8 * n_bytes / self._link.bits
        self._expected[at] += 1
        self._push(self._link_free[at] + self._link.delay, "sent", (at, request))

    def _gap(self, request: Request, seconds: float, n: int) -> None:
        if request.asked >= self._warm:
            self.report.gaps.append(seconds)
            self.report.weights.append(n)
