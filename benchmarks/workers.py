"""Layers on other machines: the text, the memory there, and the speed over links, compared with the plan.

    python -m benchmarks.workers [MODEL.gguf] [split traffic links] [--rounds 5] [--tokens 32]

split  two workers on this machine, with different amounts of memory, take all layers: the text must be the
       same as without workers, and each process must grow as planned
traffic  one worker has all layers: the bytes on the wire per token and per prompt token, including ssh's
       overhead, and the bytes that the forecast counts; they do not depend on how busy the machine is
links  one worker has all layers and is reached directly, over 1 Gbit/s with round trips that are 0.3 ms
       longer, or over 100 Mbit/s with 2 ms: tokens/s, predicted and measured, in turns

Needs OpenSSH's server. The links are a proxy (tests/remote/link.py) in front of a real sshd. MODEL defaults
to the TinyLlama shape in Q4_0.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from edgechat.base import paths
from edgechat.base.text import mebibytes
from edgechat.device.cpu import read_cpu
from edgechat.device.remote import workers
from edgechat.device.speed import store_speed
from edgechat.engine.types import ChatRequest, Delta, Finished, Message, Prefill, Sampling
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.models.formats.mlx.contents import read_model
from edgechat.planner.estimate.calibration import Calibration
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.estimate.rates import guessed
from edgechat.planner.estimate.shape import shape_of
from edgechat.planner.estimate.speed import GRAPH, MASK
from edgechat.planner.lending import KEY
from edgechat.planner.machine import current_profile, with_speeds
from edgechat.planner.placement.model_on_machine import model_on_machine
from edgechat.planner.placement.plan_model import completed
from edgechat.planner.plan import LoadPlan
from edgechat.planner.prepare import prepare
from edgechat.planner.request import PlanRequest
from tests.kit import TINYLLAMA, Spec, build
from tests.remote.link import SlowLink
from tests.remote.sshd import Sshd

LINKS = {"none": None, "1 Gbit/s, 0.3 ms": (125e6, 0.3e-3), "100 Mbit/s, 2 ms": (12.5e6, 2e-3)}
MODES = ("split", "traffic", "links")
REQUEST = PlanRequest(context=1024, draft="none")
QUESTION = "Describe a day at the sea, from the first light to the last."


def placed(model: Path, *addresses: str, split: tuple[int, ...] = ()) -> LoadPlan:
    """Return a plan with all layers on these workers, no matter how slow that is."""
    local = prepare(str(model), REQUEST)
    header = read_model(model)
    split = split or (header.n_layers + 1,)
    with DryRun() as dry:
        profile = current_profile(dry, addresses)
        dry.show(header)
        here = model_on_machine(
            local.model_name, header, profile, dry.ask, Calibration(), threads=local.threads
        )
        devices = tuple(f"RPC{number}" for number in range(len(split)))
        plan = msgspec.structs.replace(local, devices=devices, split=split, rpc=profile.rpc)
        return completed(plan, here, here.exactly(plan))


async def reply(engine: EngineSupervisor, n: int) -> tuple[str, float]:
    """Return a greedy reply of at most n tokens, and its tokens/s."""
    request = ChatRequest(
        id="r",
        messages=(Message("user", QUESTION),),
        sampling=Sampling(temperature=0.0),
        max_tokens=n,
    )
    text, speed = "", 0.0
    async for event in engine.stream(request):
        match event:
            case Delta():
                text += event.text
            case Finished():
                speed = event.timings.decode_tps
    return text, speed


async def prompt_calls(engine: EngineSupervisor, question: str) -> int:
    """Return how many calls it takes to read a prompt."""
    request = ChatRequest(id="r", messages=(Message("user", question),), max_tokens=1)
    done = {event.done async for event in engine.stream(request) if isinstance(event, Prefill)}
    return len(done - {0})


def unmeasured(sshd: Sshd, name: str, port: int | None = None) -> str:
    """Return the address of a worker that need not measure its speed first."""
    cpu = read_cpu()
    store_speed(msgspec.structs.replace(guessed(1e11, 1e12), measured=1.0), cpu, KEY + cpu.name)
    shutil.copytree(paths.cache_dir(), sshd.home(name) / "cache", dirs_exist_ok=True)
    return sshd.worker(name, port=port)


async def split(model: Path, sshd: Sshd, n: int) -> None:
    """Print whether the text is the same as without workers, and how much memory each worker took."""
    n_parts = read_model(model).n_layers + 1
    first = n_parts // 3
    plan = placed(model, unmeasured(sshd, "small"), unmeasured(sshd, "large"), split=(first, n_parts - first))
    names = ("small", "large")
    before = {name: sshd.workers(name)[0].memory_info().rss for name in names}
    engine = EngineSupervisor(plan)
    there, _ = await reply(engine, n)
    taken = {name: sshd.workers(name)[0].memory_info().rss - before[name] for name in names}
    await engine.close()
    engine = EngineSupervisor(prepare(str(model), REQUEST))
    here, _ = await reply(engine, n)
    await engine.close()
    print(f"split: the text is {'the same' if there == here else 'ANOTHER'} ({len(here)} characters)")
    planned = {memory.name: memory for memory in plan.memory}
    for number, name in enumerate(names):
        memory = planned[f"RPC{number}"]
        share = taken[name] / memory.total_bytes
        print(
            f"  {name}: {mebibytes(memory.total_bytes)} planned, {mebibytes(taken[name])} taken ({share:.3f})"
        )


async def traffic(model: Path, sshd: Sshd, n: int) -> None:
    """Print the bytes on the wire per token and the bytes that the forecast counts."""
    with SlowLink(sshd.port, rate=1e9, delay=0.0) as wire:
        plan = placed(model, unmeasured(sshd, "one", wire.port))
        engine = EngineSupervisor(plan)
        await reply(engine, 4)
        counts: list[tuple[int, int]] = []
        for length in (n, 2 * n):
            before = list(wire.n_bytes)
            await reply(engine, length)
            counts.append((wire.n_bytes[0] - before[0], wire.n_bytes[1] - before[1]))
        before = list(wire.n_bytes)
        n_calls = await prompt_calls(engine, "So it goes. " * 200)
        prompt = wire.n_bytes[0] - before[0]
        await engine.close()
    shape = shape_of(read_model(model))
    up, down = ((later - first) / n for first, later in zip(*counts, strict=True))
    depth = 40 + 1.5 * n
    print(f"traffic of a token, up: {up:.0f} bytes, {4 * shape.width + MASK * depth:.0f} by the forecast")
    print(f"  down: {down:.0f} bytes, {4 * shape.vocabulary} by the forecast")
    print(f"  of a prompt of about 830 tokens in {n_calls} calls, up: {prompt} bytes")
    expected = 830 * (4 * shape.width + MASK * 415 + GRAPH * len(shape.parts) / 256)
    print(f"  by the forecast {expected:.0f}")


async def links(model: Path, sshd: Sshd, n_rounds: int, n: int) -> None:
    """Print the predicted and measured tokens/s for each link."""
    ratios: dict[str, list[tuple[float, float]]] = {name: [] for name in LINKS}
    for number in range(n_rounds):
        for name, link in LINKS.items():
            with contextlib.ExitStack() as stack:
                port = sshd.port
                if link is not None:
                    rate, round_trip = link
                    port = stack.enter_context(SlowLink(port, rate=rate, delay=round_trip / 2)).port
                address = sshd.worker("one", port=port)
                with DryRun() as dry:
                    with_speeds(current_profile(dry))
                plan = placed(model, address)
                tunnel = workers.connect(address)
                engine = EngineSupervisor(plan)
                await reply(engine, 4)
                _, speed = await reply(engine, n)
                await engine.close()
                assert plan.forecast is not None
                # The depth includes the prompt.
                predicted = 1 / plan.forecast.decoding(40 + n / 2)
                ratios[name].append((predicted, speed))
                up, down = (getattr(tunnel.link, way) / 1e6 for way in ("up", "down"))  # type: ignore[union-attr]
                trip = 1000 * tunnel.link.round_trip  # type: ignore[union-attr]
                print(
                    f"  round {number}, {name}: predicted {predicted:.2f}, measured {speed:.2f} tokens/s "
                    f"({up:.0f} and {down:.0f} MB/s, {trip:.2f} ms)",
                    flush=True,
                )
                workers.close()
    for name, pairs in ratios.items():
        predicted, measured = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = predicted / measured
        print(f"{name}: predicted {predicted:.2f}, measured {measured:.2f} tokens/s ({ratio:.2f})")


@contextlib.contextmanager
def homes() -> Iterator[Sshd]:
    """Run an sshd; what this machine and the workers learn is stored in a temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["EDGECHAT_HOME"] = str(folder / "here")
        (folder / "ssh").mkdir()
        with Sshd(folder / "ssh") as sshd:
            os.environ["PATH"] = f"{sshd.programs}{os.pathsep}{os.environ['PATH']}"
            yield sshd
            workers.close()


def main() -> None:
    """Run the chosen measurements."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*", help="a model, and what to measure")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32)
    options = parser.parse_args()
    named = [word for word in options.words if word in MODES] or list(MODES)
    files = [Path(word) for word in options.words if word not in named]
    model = files[0] if files else build(Spec(shape=TINYLLAMA, weights="Q4_0", n_vocab=32000))
    with homes() as sshd:
        if "split" in named:
            asyncio.run(split(model, sshd, options.tokens))
        if "traffic" in named:
            asyncio.run(traffic(model, sshd, options.tokens))
        if "links" in named:
            asyncio.run(links(model, sshd, options.rounds, options.tokens))


if __name__ == "__main__":
    main()
