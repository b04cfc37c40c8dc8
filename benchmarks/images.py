"""The cost of images: a second question, the projector's memory, its effect on text, gaps during encoding.

    python -m benchmarks.images [second memory text gaps] [--size 24]

Models and projectors are tiny ones from tests/kit/vision; the projectors have --size times as many channels.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import itertools
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
from PIL import Image as PillowImage

from edgechat.base.images.image import PLACE, Image, ImageLibrary
from edgechat.engine.types import ChatRequest, Delta, Finished, Message, Sampling
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.planner.plan import LoadPlan
from edgechat.planner.prepare import prepare
from edgechat.planner.request import PlanRequest
from tests.kit.vision import KINDS, noisy, seeing

QUESTION = "What colour is it?"
GREEDY = Sampling(temperature=0)
CONTEXT = 4096


def planned(kind: str, folder: Path, size: int, *, vision: bool = True) -> LoadPlan:
    """Return the plan for a model with its projector."""
    eyes = seeing(kind, size=size)
    for path in (eyes.model, eyes.projector):
        link = folder / path.name
        if not link.exists():
            link.symlink_to(path)
    return prepare(str(folder / eyes.model.name), PlanRequest(context=CONTEXT, draft="none", vision=vision))


def picture(folder: Path, colour: str, side: int) -> Image:
    """Write an image file; return the image."""
    buffer = io.BytesIO()
    PillowImage.fromarray(noisy(colour, side, side)).save(buffer, "PNG")
    return ImageLibrary(folder / "images").add(buffer.getvalue())


async def ask(engine: EngineSupervisor, *messages: Message) -> tuple[str, Finished]:
    """Return an answer and its Finished event."""
    text = ""
    request = ChatRequest(id=f"r{time.monotonic_ns()}", messages=messages, sampling=GREEDY, max_tokens=8)
    async for event in engine.stream(request):
        if isinstance(event, Delta):
            text += event.text
        elif isinstance(event, Finished):
            return text.strip(), event
    raise RuntimeError("no end")


async def second(folder: Path, size: int) -> None:
    """Ask two questions about an image."""
    for kind in KINDS:
        engine = EngineSupervisor(planned(kind, folder, size))
        said = [Message("user", PLACE + QUESTION, media=(picture(folder, "red", 256),))]
        text, first = await ask(engine, *said)
        again, end = await ask(engine, *said, Message("assistant", text), Message("user", QUESTION))
        await engine.close()
        n_first, n_cached = first.usage.prompt_tokens, end.usage.cached_tokens
        print(f"{kind}: {text}, {again}; {n_cached / n_first:.1%} of {n_first} tokens cached")


def resident() -> int:
    """Return the worker's private memory in bytes."""
    children = psutil.Process().children(recursive=True)
    worker = next(child for child in children if "engine" in child.cmdline())
    return int(worker.memory_full_info().uss)


async def memory(folder: Path, size: int) -> None:
    """Compare a projector's planned memory with the extra memory that the worker takes."""
    for kind in KINDS:
        taken = []
        for vision in (False, True):
            plan = planned(kind, folder, size, vision=vision)
            engine = EngineSupervisor(plan)
            if vision:
                await ask(engine, Message("user", PLACE + QUESTION, media=(picture(folder, "blue", 2048),)))
            else:
                await ask(engine, Message("user", QUESTION * 8))
            taken.append(resident())
            await engine.close()
        assert plan.projector is not None
        mib, expected = (taken[1] - taken[0]) / 2**20, plan.projector.total_bytes / 2**20
        print(f"{kind}: the projector takes {mib:.0f} MiB, planned {expected:.0f} MiB")


async def text(folder: Path, size: int, rounds: int = 12) -> None:
    """Time text with and without a projector loaded, in turns."""
    engines = [EngineSupervisor(planned("dense", folder, size, vision=vision)) for vision in (True, False)]
    ratios = []
    for turn in range(rounds + 1):
        rates = []
        for engine in engines:
            began = time.perf_counter()
            for part in range(10):
                await ask(engine, Message("user", f"{turn}.{part} " * 500))
            rates.append(1 / (time.perf_counter() - began))
        ratios.append(rates[0] / rates[1])
    for engine in engines:
        await engine.close()
    ratios = sorted(ratios[1:])
    middle, least, most = statistics.median(ratios), ratios[0], ratios[-1]
    print(f"text with a projector: {middle:.3f} of without ({least:.3f} to {most:.3f})")


async def stream(engine: EngineSupervisor, arrivals: list[float]) -> None:
    """Stream text forever, recording when each piece arrives."""
    free = Sampling(temperature=1.0, seed=1, bias=((1, -1e6), (2, -1e6)))
    messages = (Message("user", "Tell."),)
    while True:
        request = ChatRequest(id=f"s{time.monotonic_ns()}", messages=messages, sampling=free, max_tokens=900)
        async for event in engine.stream(request):
            if isinstance(event, Delta):
                arrivals += [time.perf_counter()]


async def gaps(folder: Path, size: int) -> None:
    """Measure the gaps in a stream while an image is encoded."""
    for kind in KINDS:
        engine = EngineSupervisor(planned(kind, folder, size))
        await ask(engine, Message("user", QUESTION))
        arrivals: list[float] = []
        task = asyncio.create_task(stream(engine, arrivals))
        await asyncio.sleep(1)
        began = time.perf_counter()
        image = picture(folder, "green", 256)
        said, _ = await ask(engine, Message("user", PLACE + QUESTION, media=(image,)))
        ended = time.perf_counter()
        task.cancel()
        await asyncio.wait([task])
        await engine.close()
        within = [at for at in arrivals if began <= at <= ended]
        longest = max((b - a for a, b in itertools.pairwise(within)), default=ended - began)
        told = f"{said} after {ended - began:.1f} s"
        print(f"{kind}: {told}; longest gap of {len(within)}: {1000 * longest:.0f} ms")


FIGURES: dict[str, Callable[[Path, int], Awaitable[None]]] = {
    "second": second,
    "memory": memory,
    "text": text,
    "gaps": gaps,
}


async def main() -> None:
    """Run the chosen measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", nargs="*", default=list(FIGURES))
    parser.add_argument("--size", type=int, default=24)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for figure in options.figures:
            await FIGURES[figure](Path(folder), options.size)


if __name__ == "__main__":
    asyncio.run(main())
