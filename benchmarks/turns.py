"""What a new turn has to compute: the prompt tokens that are not in the cache after the last reply.

    python -m benchmarks.turns [--templates FOLDER] [--vocab FILE.gguf] [--turns 4] [--speed]

Covers every template, with and without a system prompt, and with and without thinking in the replies. For the
prompts of turns 2 to 4, it counts the tokens beyond the prefix shared with the last prompt and its reply as
generated ("kept"), and the tokens beyond what settling has computed while idle ("settled"). The question and
the generation prompt are always new. No model runs; without --vocab, tokens are bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from edgechat.base.errors import EdgechatError
from edgechat.base.process.child import RestartingChild
from edgechat.engine.backends.base import Vocabulary
from edgechat.engine.prompt.prompts import Prompts
from edgechat.engine.prompt.template import ChatTemplate, Marks, template_process
from edgechat.engine.types import ChatRequest, Message
from tests.scripted.backend import ScriptedVocabulary

TEMPLATES = Path(__file__).parents[1] / "tests" / "engine" / "templates"
CELLS = 2**17
LONG = 16_000
FIGURES = ("kept", "settled")
SYSTEM = Message("system", "You are brief, kind and exact, and you never make anything up.")
QUESTION = "How many bridges of the river number {} are older than {} years, and who has built them?"
ANSWER = "There are {} of them, most of stone; number {} was built by the town itself.\n\nShall I list them?"
THOUGHT = "The user asks about bridges. River {} has {} bridges that I know of. I should count them first."


@contextlib.contextmanager
def vocabulary_of(path: Path | None) -> Iterator[Vocabulary]:
    """Yield the vocabulary of a GGUF file, which need not contain a model; by default, the scripted one."""
    if path is None:
        yield ScriptedVocabulary()
        return
    from edgechat.native import logs
    from edgechat.native.handles import Model
    from edgechat.native.params import LoadParams
    from edgechat.native.vocabulary import NativeVocabulary
    from tests.kit import Spec, build

    logs.install()
    with tempfile.TemporaryDirectory() as folder:
        model = Model(
            build(Spec(tokenizer=path, name=path.stem), folder=Path(folder)), LoadParams(context=512)
        )
        try:
            yield NativeVocabulary(model)
        finally:
            model.close()


def generated(marks: Marks | None, reply: Message, *, opened: bool) -> str:
    """Return the text that the model must have generated if the front end receives `reply`."""
    if marks is None or not reply.thinking:
        return reply.content
    begin = "" if opened else marks.open + "\n" * (marks.open[-1] == ">" and "<|" not in marks.open)
    between = "".join(marks.skip) or "\n\n"
    return f"{begin}{reply.thinking}\n{marks.close}{between}{reply.content}"


def shared(one: list[int], other: list[int]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """Tokens in one turn's prompt: those of the question, and those beyond what is cached or settled."""

    new: int
    kept: int
    settled: int


def turns(template: ChatTemplate, vocabulary: Vocabulary, n: int, *, ruled: bool, thinks: bool) -> list[Turn]:
    """Return turns 2 to n of a chat."""
    prompts, found = Prompts(template, vocabulary), []
    messages = [SYSTEM] if ruled else []
    cache: list[int] = []
    settled: list[int] = []
    for number in range(1, n + 1):
        question = Message("user", QUESTION.format(number, number * 37))
        request = ChatRequest(id="turn", messages=(*messages, question), date="2026-10-09")
        prompt = prompts.of(request, CELLS)
        if number > 1:
            new = len(vocabulary.tokenize(question.content, bos=False, special=False))
            kept = len(prompt.tokens) - shared(prompt.tokens, cache)
            found.append(Turn(new, kept, len(prompt.tokens) - shared(prompt.tokens, settled)))
        thought = THOUGHT.format(number, number) if thinks else ""
        reply = Message("assistant", ANSWER.format(number, number), thought)
        text = generated(template.marks, reply, opened=prompt.thinking)
        cache = prompt.tokens + vocabulary.tokenize(text, bos=False, special=True)
        after = prompts.next(request, reply, CELLS)
        settled = after.tokens if after else []
        messages = [*request.messages, reply]
    return found


def table(folder: Path, vocabulary: Vocabulary, process: RestartingChild, n: int) -> None:
    """Print a line for each template and kind of chat."""
    print(f"{'template':42} system thinks {'question':>8} {'kept':>20} {'settled':>20}")
    for path in sorted(folder.glob("*.jinja")):
        template = ChatTemplate(path.read_text(), bos=vocabulary.bos, eos=vocabulary.eos, process=process)
        for ruled, thinks in itertools.product((False, True), repeat=2):
            row = f"{path.stem[:42]:42} {'yes' if ruled else 'no':6} {'yes' if thinks else 'no':6} "
            try:
                found = turns(template, vocabulary, n, ruled=ruled, thinks=thinks)
            except EdgechatError as error:
                print(row + error.message[:50])
                continue
            kept, settled = (" ".join(f"{getattr(one, name):5}" for one in found) for name in FIGURES)
            print(f"{row}{found[0].new:8} {kept:>20} {settled:>20}")


def speed(folder: Path, vocabulary: Vocabulary, process: RestartingChild) -> None:
    """Print how many milliseconds it takes to build the prompts of a long chat."""
    columns = ("render", "tokens", "first of", "of", "next")
    print(f"\n{f'ms, a chat of {LONG} tokens':42} " + " ".join(f"{column:>8}" for column in columns))
    for path in sorted(folder.glob("*.jinja")):
        template = ChatTemplate(path.read_text(), bos=vocabulary.bos, eos=vocabulary.eos, process=process)
        times = times_of(template, vocabulary)
        print(f"{path.stem[:42]:42} " + " ".join(f"{time:8.1f}" for time in times))


def times_of(template: ChatTemplate, vocabulary: Vocabulary) -> list[float]:
    """Return the milliseconds for each column that `speed` prints."""
    each = len(vocabulary.tokenize(QUESTION + ANSWER, bos=False, special=False)) + 10
    messages = [
        message
        for n in range(LONG // each)
        for message in (Message("user", QUESTION.format(n, n)), Message("assistant", ANSWER.format(n, n)))
    ]
    request = ChatRequest(id="long", messages=(*messages, Message("user", "And now?")), date="2026-10-09")
    text = template.render(request.messages, date=request.date)
    prompts, cells, reply = Prompts(template, vocabulary), 2 * LONG, Message("assistant", "So it is.")
    return [
        milliseconds(lambda: template.render(request.messages, date=request.date)),
        milliseconds(lambda: vocabulary.tokenize(text, bos=True, special=True)),
        milliseconds(lambda: prompts.of(request, cells), rounds=1),
        milliseconds(lambda: prompts.of(request, cells)),
        milliseconds(lambda: prompts.next(request, reply, cells)),
    ]


def milliseconds(work: Callable[[], object], rounds: int = 5) -> float:
    """Return the median time of a few rounds, in milliseconds."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--templates", type=Path, default=TEMPLATES)
    parser.add_argument("--vocab", type=Path)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--speed", action="store_true", help="time a chat of 16,000 tokens, too")
    options = parser.parse_args()
    process = template_process()
    with vocabulary_of(options.vocab) as vocabulary:
        table(options.templates, vocabulary, process, options.turns)
        if options.speed:
            speed(options.templates, vocabulary, process)
    process.close()


if __name__ == "__main__":
    main()
