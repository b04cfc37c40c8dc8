"""Run the exams on the guide that users talk to: in its worker and with the documentation.

    python packaging/guide/told.py [--practice] [--show]    both exams: the corpus's and the newcomers'

--practice: run the exams that were used to choose its thresholds instead of the held-out ones.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Iterable

from corpus import Corpus
from exam import Asked, exam
from shape import GUIDE

from edgechat.engine.types import ChatRequest, Delta, Message
from edgechat.guide.engine import Guide
from edgechat.guide.manual import FROM
from edgechat.planner.prepare import prepare

HELD_OUT, PRACTICE = ("held_out", "newcomers"), ("practice", "newcomers_practice")


async def answer(guide: Guide, ask: str) -> tuple[str, float]:
    """Return the guide's answer, and the milliseconds until its first words."""
    assert guide.plan.sampling.temperature == 0
    request = ChatRequest(id=ask, messages=(Message("user", ask),), sampling=guide.plan.sampling.given())
    began, first, text = time.perf_counter(), 0.0, ""
    async for event in guide.stream(request):
        if isinstance(event, Delta):
            first = first or time.perf_counter() - began
            text += event.text
    return text, 1000 * first


async def marked(corpus: Corpus, questions: Iterable[Asked], *, show: bool) -> str:
    """Return a table row: right answers, right refusals, quotations, and time to the first word."""
    guide = Guide(prepare("guide"))
    await guide.start()
    counts = {False: [0, 0], True: [0, 0]}
    quoted, times = 0, list[float]()
    for one in questions:
        said, first = await answer(guide, one.ask)
        is_right = one.is_told(corpus, said)
        counts[one.declined][0] += is_right
        counts[one.declined][1] += 1
        quoted += FROM in said
        times.append(first)
        if show and not is_right:
            print(f"WRONG {one.ask}\n      {said}\n")
    await guide.close()
    cells = [f"{right} of {all_} ({right / all_:.0%})" for right, all_ in counts.values()]
    late = sorted(times)[int(0.95 * len(times))]
    return f"{' | '.join(cells)} | {quoted} | {statistics.median(times):.0f}, {late:.0f} ms"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--practice", action="store_true")
    parser.add_argument("--show", action="store_true", help="print wrong answers")
    options = parser.parse_args()
    corpus = Corpus(GUIDE.size)
    print("| exam | right | strays declined | quote the documentation | first word: median, 95 of 100 |")
    print("|---|---|---|---|---|")
    for name in PRACTICE if options.practice else HELD_OUT:
        questions = [case.turns[0] for case in exam(name) if len(case.turns) == 1]
        print(f"| `{name}` | {asyncio.run(marked(corpus, questions, show=options.show))} |", flush=True)


if __name__ == "__main__":
    main()
