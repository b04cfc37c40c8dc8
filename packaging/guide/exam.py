"""The guide's exams: questions that are kept out of the corpus, and how answers are marked.

An answer from the model counts only if it is, word for word, the answer of an intent that fits the question.
For questions out of scope, the answer of any declining intent counts. The guide that users talk to can also
quote the documentation, so its answers also count if they state all the required facts. Whether an answer is
right or wrong, the names in it are checked against edgechat itself.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import llama_cpp
from corpus import Corpus
from named import toml

LONGEST = 320
"""Maximum number of tokens in an answer; the longest one in the corpus is shorter."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, the intents that answer it, and whether it is outside the guide's scope."""

    ask: str
    right: tuple[str, ...]
    declined: bool = False
    says: tuple[str, ...] = ()
    """Regular expressions, all of which a right answer must match."""

    def is_told(self, corpus: Corpus, said: str) -> bool:
        """Return True if an answer, which may quote the documentation, is right."""
        if self.declined:
            return said in corpus.declines
        answers = {corpus.answers[corpus.about.get(name, name)] for name in self.right}
        has_facts = bool(self.says) and all(re.search(one, said, re.IGNORECASE) for one in self.says)
        return has_facts or any(answer in said for answer in answers)


@dataclass(frozen=True, slots=True)
class Case:
    """A series of questions, after a system prompt that is often empty."""

    turns: tuple[Asked, ...]
    system: str = ""


@dataclass(frozen=True, slots=True)
class Marked:
    """An answer: whether it is right, whether it is in the corpus, and complaints about unknown names."""

    asked: Asked
    said: str
    right: bool
    known: bool
    untrue: tuple[str, ...]


@dataclass(slots=True)
class Marks:
    """The marks for an exam: for standalone questions in scope and out of scope, and for dialogues."""

    single: list[Marked] = field(default_factory=list)
    declined: list[Marked] = field(default_factory=list)
    dialogue: list[Marked] = field(default_factory=list)

    @property
    def all(self) -> list[Marked]:
        """All marked answers."""
        return [*self.single, *self.declined, *self.dialogue]

    @property
    def untrue(self) -> list[str]:
        """Complaints about unknown names in the answers."""
        return [fault for one in self.all for fault in one.untrue]


def right(marked: list[Marked]) -> int:
    """Return how many of the answers are right."""
    return sum(one.right for one in marked)


def exam(name: str) -> tuple[Case, ...]:
    """Return the cases in NAME.toml."""
    data = toml(f"{name}.toml")
    single = [Case((_asked(one),)) for one in data["question"]]
    return (
        *single,
        *(Case(tuple(map(_asked, one["turns"])), one.get("system", "")) for one in data.get("dialogue", ())),
    )


def _asked(one: dict) -> Asked:
    right, says = tuple(one.get("right", ())), tuple(one.get("says", ()))
    return Asked(one["ask"], right, one.get("declined", False), says)


def unknown_names(corpus: Corpus, cases: Iterable[Case]) -> set[str]:
    """Return the intents that the cases expect but the corpus lacks."""
    names = {name for case in cases for turn in case.turns for name in turn.right}
    return {name for name in names if corpus.about.get(name, name) not in corpus.answers}


def mark(corpus: Corpus, llama: llama_cpp.Llama, cases: Iterable[Case], temperature: float = 0.0) -> Marks:
    """Ask all questions and mark the answers."""
    marks, answers = Marks(), corpus.answers
    texts = set(answers.values())
    for case in cases:
        kind = (
            marks.dialogue
            if len(case.turns) > 1
            else marks.declined
            if case.turns[0].declined
            else marks.single
        )
        messages = [{"role": "system", "content": case.system}] if case.system else []
        for turn in case.turns:
            messages.append({"role": "user", "content": turn.ask})
            said = answer(llama, messages, temperature)
            messages.append({"role": "assistant", "content": said})
            good = said in {answers[corpus.about.get(name, name)] for name in turn.right}
            good = good or (turn.declined and said in corpus.declines)
            kind.append(Marked(turn, said, good, said in texts, tuple(corpus.product.untrue(said))))
    return marks


def answer(llama: llama_cpp.Llama, messages: list[dict[str, str]], temperature: float = 0.0) -> str:
    """Return the guide's answer to the last message."""
    made = llama.create_chat_completion(messages, temperature=temperature, max_tokens=LONGEST, seed=1)
    return made["choices"][0]["message"]["content"]


def stray(corpus: Corpus, count: int, seed: int = 0) -> Iterator[str]:
    """Yield questions that nobody would ask: several from the corpus joined, cut short, or shuffled."""
    rng = random.Random(seed)
    intents = list(corpus.intents.values())
    for _ in range(count):
        words = " ".join(
            corpus.question(rng.choice(intents), rng) for _ in range(rng.choice((1, 2, 2, 3)))
        ).split()
        if rng.random() < 0.5:
            rng.shuffle(words)
        yield " ".join(words[: rng.randint(1, 14)])


def invented(corpus: Corpus, llama: llama_cpp.Llama, asks: Iterable[str]) -> list[tuple[str, str, list[str]]]:
    """Return the answers that name something edgechat does not have, each with its question and faults."""
    answers = ((ask, answer(llama, [{"role": "user", "content": ask}])) for ask in asks)
    return [(ask, said, faults) for ask, said in answers if (faults := corpus.product.untrue(said))]
