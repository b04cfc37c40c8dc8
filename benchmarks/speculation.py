"""Compares speculation with plain decoding and with every fixed draft length, for pairs of known agreement.

    python -m benchmarks.speculation live   [--rounds 10] [--tokens 64] [--streams 1] [--pairs 0.05,useless]
    python -m benchmarks.speculation record [--positions 60]       -> .models/speculation-traces.json
    python -m benchmarks.speculation costs                         -> .models/speculation-costs.json
    python -m benchmarks.speculation replay
    python -m benchmarks.speculation copy   [--rounds 10] [--weights F16,Q4_0,mlx-F32,4bit]

live: the engine, in this process, decodes from the same prompt in turns: plain, with drafts of each fixed
length, and with the controller. The best fixed length is chosen on one half of the rounds and scored on the
other. record: for each position in a text, what the draft would propose, how confident it is, and how many of
the tokens are accepted. costs: the time of calls with 1 to 16 rows, and of drafting a token. replay: runs the
controller and every fixed length on these records, which contain no noise. copy: a text is repeated with one
word changed, and the drafts come from n-grams; the calls are real, but the tokens are forced, since random
weights copy nothing.

The target has 24 layers of 1024 and a vocabulary of 32000 (0.43B); the draft is its first layer (0.08B). The
weights 4bit, 8bit, mlx-F16 and mlx-F32 are for MLX, the others for llama.cpp. MLX is slow on CPUs, so its
models have 24 layers of 256 and a vocabulary of 4096 there.

eps scales what the other layers add: at 0, target and draft agree. "useless" is a draft with different random
weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import edgechat.native  # noqa: F401  (first: it sets how OpenMP's threads wait)

# isort: split
import numpy as np

from edgechat.engine.backends.base import Backend, BatchPart
from edgechat.engine.engine import EngineCore
from edgechat.engine.prompt.template import ChatTemplate
from edgechat.engine.sampling import Sampler
from edgechat.engine.scheduling.sequence import Draft
from edgechat.engine.scheduling.sequence import Sequence as Stream
from edgechat.engine.speculative.controller import Controller, DraftChoice, DraftOffer, Rounds
from edgechat.engine.speculative.drafters import DraftRequest, ModelDrafter
from edgechat.engine.speculative.estimates import StepCost
from edgechat.engine.speculative.speculation import verify
from edgechat.engine.types import LONGEST_DRAFT, ChatRequest, Finished, Message, Sampling, Source
from tests.engine.runtimes import GPU, plan
from tests.engine.runtimes import load as opened
from tests.kit import MODELS_DIR, NOT_PRINTABLE, Shape, Spec, build

SHAPE = Shape(n_layers=24, n_embd=1024, n_ff=3584, n_heads=16, n_kv_heads=16)
PAIRS = ("0", "0.03", "0.05", "0.15", "useless")
TEMPERATURES = (0.0, 0.8)
FIXED = (1, 2, 3, 4, 6, 8)
TRACES, COSTS = MODELS_DIR / "speculation-traces.json", MODELS_DIR / "speculation-costs.json"
MLX = ("4bit", "8bit", "mlx-F16", "mlx-F32")
SMALL = Shape(n_layers=24, n_embd=256, n_ff=704, n_heads=4, n_kv_heads=4)
"""For MLX on a CPU."""
THREADS = 2
LOADING: dict[str, Any] = {"threads": THREADS, "n_outputs_max": 32, "n_ubatch": 512, "flash_attention": True}
PROMPTS = 6
"""Greedy text from random weights soon repeats itself; different prompts lead to different loops."""


def prompt(number: int) -> str:
    random = np.random.default_rng(number)
    return "".join(chr(97 + one) for one in random.integers(0, 26, 200))


def models(weights: str, pair: str) -> tuple[Path, Path]:
    """Return the paths of the target and the draft."""
    for_mlx = weights in MLX
    shape, n_vocab = (SMALL, 4096) if for_mlx and not GPU else (SHAPE, 32000)
    weights = weights.removeprefix("mlx-")
    common: dict[str, Any] = {"logit_scale": 6.0, "n_vocab": n_vocab, "mute": NOT_PRINTABLE}
    eps = 0.05 if pair == "useless" else float(pair)
    damped = dict.fromkeys(range(1, shape.n_layers), eps)
    target = Spec(shape=shape, weights=weights, damped=damped, name=f"target-{eps:g}", **common)
    seed = 7 if pair == "useless" else 1
    draft = Spec(shape=shape.sized(n_layers=1), weights=weights, seed=seed, name="draft", **common)
    if not for_mlx:
        return build(target), build(draft)
    from tests.kit.mlx import mlx_build

    return mlx_build(target), mlx_build(draft)


def load(path: Path) -> Backend:
    return opened(plan(path, **LOADING))


class Plain(Controller):
    """Never drafts."""

    def begin(self, n_streams: int, depth: float) -> bool:
        super().begin(n_streams, depth)
        return False


class Fixed(Controller):
    """Always drafts the same length."""

    def __init__(self, length: int) -> None:
        super().__init__(StepCost())
        self.length = length

    def begin(self, n_streams: int, depth: float) -> bool:
        super().begin(n_streams, depth)
        return True

    def may_lose(self, won: float, n_tokens: int) -> bool:
        return True

    def choose(self, offers: Sequence[Sequence[DraftOffer]], most: int) -> list[DraftChoice | None]:
        return [
            DraftChoice(one[-1].source, min(self.length, len(one[-1].chances))) if one else None
            for one in offers
        ]

    def expected_gain(self, source: Source) -> float:
        return 1.0

    def is_worth_drafting(
        self, source: Source, chances: Sequence[float], n_beside: int, longest: int
    ) -> bool:
        return len(chances) < self.length

    def is_worth_adding(self, source: Source, chances: Sequence[float], n_beside: int, longest: int) -> bool:
        return True

    def worth_verifying(self, chances: Sequence[float], n_beside: int) -> int:
        return len(chances)


# Live.


def open_engine(weights: str, pair: str) -> EngineCore:
    target, draft = models(weights, pair)
    backend = load(target)
    drafter = ModelDrafter(load(draft), backend.vocabulary.size)
    engine = EngineCore(backend, ChatTemplate(backend.chat_template), model_drafter=drafter)
    engine.warm_up()
    return engine


def decode(
    engine: EngineCore, controller: Controller, temperature: float, tokens: int, number: int, streams: int = 1
) -> tuple[float, Finished]:
    """Return the tokens/s of one or several replies at once, and the Finished event of one of them."""
    engine.speculation.controller = controller
    for stream in range(streams):
        said = prompt((number + stream) % PROMPTS)
        request = ChatRequest(
            id=str(time.perf_counter_ns()),
            messages=(Message("user", said),),
            sampling=Sampling(temperature=temperature),
            max_tokens=tokens,
        )
        engine.submit(request)
    ends: list[Finished] = []
    while len(ends) < streams:
        ends += [event for event in engine.step() if isinstance(event, Finished)]
    return sum(one.timings.decode_tps for one in ends), ends[0]


def live(
    weights: str, pair: str, temperature: float, rounds: int, tokens: int, streams: int
) -> dict[str, Any]:
    engine = open_engine(weights, pair)
    adaptive, prior = Controller(StepCost()), engine.speculation.controller
    adaptive.round_costs = prior.round_costs
    adaptive.cost.observe(1, prior.cost.level)
    runs: dict[str, Controller] = {"plain": Plain(StepCost()), "adaptive": adaptive}
    runs |= {str(length): Fixed(length) for length in FIXED}
    rates: dict[str, list[float]] = {name: [] for name in runs}
    decode(engine, Fixed(2), temperature, 16, 0)
    first, _ = decode(engine, adaptive, temperature, tokens, 3, streams)
    for number in (4, 5, 3):  # as if the user had chatted before: what was learned is kept
        decode(engine, adaptive, temperature, tokens, number, streams)
    last = None
    for number in range(rounds):
        names = list(runs)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            rate, finished = decode(engine, runs[name], temperature, tokens, number // 2, streams)
            rates[name].append(rate)
            if name == "adaptive":
                last = finished
    engine.close()
    odd, even = slice(1, None, 2), slice(0, None, 2)
    against = []
    for choose, score in ((odd, even), (even, odd)):
        best = max((name for name in runs if name != "adaptive"), key=lambda one: mean(rates[one][choose]))
        against.append((best, mean(rates["adaptive"][score]) / mean(rates[best][score])))
    found = {
        "of_plain": mean(rates["adaptive"]) / mean(rates["plain"]),
        "first_reply": first / mean(rates["plain"]),
        "of_best_fixed": statistics.mean(ratio for _, ratio in against),
        "best_fixed": [best for best, _ in against],
        "rates": {name: round(mean(one), 1) for name, one in rates.items()},
        "purse": round(adaptive.purse, 1),
    }
    stats = last.speculation if last else None
    print(
        f"{weights:5} eps {pair:8} T {temperature:3}: {found['of_plain']:.3f} of plain "
        f"(very first reply {found['first_reply']:.2f}), "
        f"{found['of_best_fixed']:.3f} of best fixed {found['best_fixed']}; {found['rates']} "
        f"{f'accepted {stats.accepted_tokens}/{stats.drafted_tokens}' if stats else 'no drafts'}",
        flush=True,
    )
    return found


def mean(rates: Sequence[float]) -> float:
    """Return the harmonic mean, which is the overall rate if each rate covers the same number of tokens."""
    return statistics.harmonic_mean(rates)


# Records.


def record(weights: str, pair: str, temperature: float, positions: int) -> dict[str, Any]:
    target, draft = models(weights, pair)
    backend, small = load(target), load(draft)
    drafter = ModelDrafter(small, backend.vocabulary.size)
    classes, stood = [], []
    for number in range(PROMPTS):
        said = backend.vocabulary.tokenize(prompt(number), bos=True, special=True)
        backend.truncate(0, 0)
        rows = backend.decode([BatchPart(0, 0, said, 1)])
        sampler = Sampler(Sampling(temperature=temperature))
        stream = _stream(said, sampler)
        stream.tokens.append(sampler.choose(rows[0], stream.tokens))
        for _ in range(positions):
            guess = Draft("model")
            longest = LONGEST_DRAFT["model"]
            drafter.draft([DraftRequest(stream, guess, longest, lambda _: True, lambda _: True)])
            at = len(stream.tokens) - 1
            rows = backend.decode(
                [BatchPart(0, at, [stream.tokens[-1], *guess.tokens], 1 + len(guess.tokens))]
            )
            found = verify(sampler, rows, stream.tokens, guess)
            classes.append(guess.confidence)
            stood.append(len(found) - 1)
            # Advance by one token, sampled as if nothing had been drafted.
            stream.tokens.append(found[0] if temperature <= 0 else sampler.choose(rows[0], stream.tokens))
            backend.truncate(0, at + 1)
        drafter.forget(stream)
    backend.close()
    small.close()
    print(f"{weights} eps {pair} T {temperature}: {statistics.mean(stood):.2f} of 8 stand", flush=True)
    return {"classes": classes, "stood": stood}


def _stream(tokens: list[int], sampler: Sampler) -> Stream:
    request = ChatRequest(id="0", messages=())
    return Stream(
        request=request,
        tokens=list(tokens),
        n_prompt=len(tokens),
        sampler=sampler,
        arrived=0.0,
    )


def costs(weights: str, rounds: int = 25) -> dict[str, Any]:
    """Return the median seconds of calls with 1 to 16 rows and of drafting a token, in paired rounds."""
    target, draft = models(weights, "0.05")
    backend, small = load(target), load(draft)
    depth = 400
    for one in (backend, small):
        one.decode([BatchPart(0, 0, [5 + i % 200 for i in range(depth)], 1)])
    seconds: list[list[float]] = [[] for _ in range(17)]
    for _ in range(rounds):
        for n in range(1, 17):
            seconds[n].append(_timed(backend, depth, n))
            seconds[0].append(_timed(small, depth, 1))
    medians = [statistics.median(one) for one in seconds]
    backend.close()
    small.close()
    print(
        f"{weights}: C(1) {1000 * medians[1]:.1f} ms, C(n)/C(1) "
        f"{[round(one / medians[1], 2) for one in medians[1:]]}, draft {medians[0] / medians[1]:.3f}"
    )
    return {"costs": medians[1:], "round": medians[0]}


def _timed(backend: Backend, depth: int, n: int) -> float:
    began = time.perf_counter()
    backend.decode([BatchPart(0, depth, [5 + i for i in range(n)], n)])
    seconds = time.perf_counter() - began
    backend.truncate(0, depth)
    return seconds


# Replay.


class Replay:
    """Replays a record without noise, with costs in units of C(1)."""

    def __init__(self, trace: dict[str, Any], costs: dict[str, Any], *, drawn: bool) -> None:
        self.classes, self.stood = trace["classes"], trace["stood"]
        self.drawn = drawn
        first = costs["costs"][0]
        self.costs = [one / first for one in costs["costs"]]
        self.round = costs["round"] / first

    def fixed(self, length: int, tokens: int) -> float:
        """Return the tokens per C(1) with drafts of a fixed length."""
        return self._run(lambda classes: (length, length), None, tokens)

    def adaptive(self, controller: Controller, tokens: int) -> float:
        controller.round_costs["model"] = self.round
        controller.cost.observe(1, 1.0)

        def lengths(classes: list[int]) -> tuple[int, int]:
            if not controller.begin(1, 400):
                return 0, 0
            choice = controller.choose([[DraftOffer("model", controller.prospects("model"))]], 15)[0]
            if choice is None:
                return 0, 0
            rounds = drafted = 0
            while True:
                rounds += 1
                if not controller.is_worth_adding(
                    "model", controller.chances(classes[:rounds], "model"), 0, 8
                ):
                    break
                drafted = rounds
                chances = controller.chances(classes[:drafted], "model")
                if drafted == 8 or not controller.is_worth_drafting("model", chances, 0, 8):
                    break
            chances = controller.chances(classes[:drafted], "model")
            return rounds, drafted if self.drawn else controller.worth_verifying(chances, 0)

        return self._run(lengths, controller, tokens)

    def _run(
        self, lengths: Callable[[list[int]], tuple[int, int]], controller: Controller | None, tokens: int
    ) -> float:
        made, spent, at, rounds = 0, 0.0, 0, 0
        random = np.random.default_rng(0)
        places = (int(one) for _ in iter(int, 1) for one in random.permutation(len(self.stood)))
        while made < tokens:
            classes = self.classes[at]
            drafted, kept = lengths(classes)
            stood = min(self.stood[at], kept)
            cost, drafting = self.costs[kept], drafted * self.round
            if controller is not None:
                if kept:
                    controller.acceptance["model"].observe(classes[:kept], stood)
                controller.observe(1 + kept, stood + 1, cost, rounds={"model": Rounds(drafted, drafting)})
            made += stood + 1
            spent += cost + drafting
            at += stood + 1
            if self.drawn:  # a drawn token would have led away from the recorded text
                at = next(places)
            elif at >= len(self.stood):  # start over, through other positions
                rounds += 1
                at = rounds % 7
        return made / spent


def replay(tokens: int) -> None:
    traces, curves = json.loads(TRACES.read_text()), json.loads(COSTS.read_text())
    worst: list[float] = []
    for name, trace in traces.items():
        run = Replay(trace, curves[name.split()[0]], drawn=not name.endswith("T0.0"))
        rates = {length: run.fixed(length, tokens) for length in range(9)}
        best = max(rates, key=lambda one: rates[one])
        controller = Controller(StepCost())
        cold = run.adaptive(controller, 256)
        warm = run.adaptive(controller, tokens)
        worst.append(warm / rates[best])
        print(
            f"{name:22} best fixed {best}: {rates[best]:.3f}; adaptive {warm:.3f} = {warm / rates[best]:.3f} "
            f"of it; its first 256 tokens {cold:.3f} of plain"
        )
    print(f"worst {min(worst):.3f}, mean {statistics.mean(worst):.3f}")


# Copies.


class Forced(Sampler):
    """Takes its tokens from a script and ignores the logits."""

    def __init__(self, script: Sequence[int]) -> None:
        super().__init__(Sampling(temperature=0))
        self._script: Iterator[int] = iter(script)

    def choose(self, logits: Any, recent: Sequence[int], reply: Sequence[int] = ()) -> int:
        super().choose(logits, recent, reply)
        return next(self._script)


def copy(weights: str, rounds: int) -> None:
    from edgechat.engine.speculative.drafters import NgramDrafter

    target, _ = models(weights, "0.05")
    backend = load(target)
    engine = EngineCore(backend, ChatTemplate(backend.chat_template), ngrams=True)
    engine.warm_up()
    random = np.random.default_rng(3)
    words = ["".join(chr(97 + c) for c in random.integers(0, 26, random.integers(2, 8))) for _ in range(120)]
    text = " ".join(words[i] for i in random.integers(0, 120, 60))
    edited = text.replace(text.split()[30], "another", 1)
    rates: dict[str, list[float]] = {
        "plain": [],
        "n-grams": [],
        "n-grams, nothing to copy": [],
        "plain, the same": [],
    }
    adaptive = Controller(StepCost())
    other = "".join(chr(97 + c) for c in random.integers(0, 26, len(edited)))
    for _ in range(rounds):
        for name, said, controller in (
            ("plain", edited, Plain(StepCost())),
            ("n-grams", edited, adaptive),
            ("plain, the same", other, Plain(StepCost())),
            ("n-grams, nothing to copy", other, adaptive),
        ):
            script = backend.vocabulary.tokenize(said, bos=False, special=False)
            engine.speculation._ngram = NgramDrafter()
            engine.speculation.controller = controller
            engine.submit(
                ChatRequest(
                    id=str(time.perf_counter_ns()),
                    max_tokens=len(script),
                    messages=(Message("user", f"Change a word: {text}"),),
                    sampling=Sampling(temperature=0),
                )
            )
            stream = engine.scheduler.sequences[-1]
            stream.sampler = Forced(script)
            rate = 0.0
            while not rate:
                for event in engine.step():
                    if isinstance(event, Finished):
                        rate = event.timings.decode_tps
            rates[name].append(rate)
    engine.close()
    plain, ngrams = mean(rates["plain"]), mean(rates["n-grams"])
    same, nothing = mean(rates["plain, the same"]), mean(rates["n-grams, nothing to copy"])
    print(
        f"{weights}: a text of {len(edited)} tokens with a word changed: {ngrams:.1f} tokens/s, "
        f"{ngrams / plain:.2f} of plain; with nothing to copy {nothing / same:.3f} of plain",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("live", "record", "costs", "replay", "copy"))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--positions", type=int, default=60, help="of each prompt")
    parser.add_argument("--pairs", default=",".join(PAIRS))
    parser.add_argument("--weights", default="F16,Q4_0")
    options = parser.parse_args()
    if options.what == "replay":
        replay(4000)
        return
    found: dict[str, Any] = {}
    for weights in options.weights.split(","):
        if options.what == "copy":
            copy(weights, options.rounds)
            continue
        for pair in options.pairs.split(",") if options.what in ("live", "record") else ():
            for temperature in TEMPERATURES:
                name = f"{weights} {pair} T{temperature}"
                if options.what == "live":
                    found[name] = live(
                        weights, pair, temperature, options.rounds, options.tokens, options.streams
                    )
                else:
                    found[name] = record(weights, pair, temperature, options.positions)
        if options.what == "costs":
            found[weights] = costs(weights)
    if options.what in ("record", "costs"):
        (TRACES if options.what == "record" else COSTS).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
