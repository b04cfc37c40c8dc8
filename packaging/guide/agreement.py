"""How often the draft foresees what the guide says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import llama_cpp
from exam import LONGEST, Case
from llama_cpp.llama_chat_format import Jinja2ChatFormatter


@dataclass(frozen=True, slots=True)
class Agreement:
    """For each answer of the guide, which of its tokens the draft foresaw from those before."""

    answers: tuple[tuple[bool, ...], ...]

    @property
    def share(self) -> float:
        """The share of all tokens."""
        return sum(map(sum, self.answers)) / sum(map(len, self.answers))

    @property
    def stretch(self) -> float:
        """How many tokens in a row are foreseen, in the mean of all unbroken rows."""
        rows = [sum(row) for answer in self.answers for good, row in groupby(answer) if good]
        return sum(rows) / len(rows)

    def per_call(self, drafted: int) -> float:
        """How many tokens a call of the guide gives where the draft guesses `drafted` ahead.

        The call that reads the prompt gives the first token and is not counted.
        """
        return sum(len(answer) - 1 for answer in self.answers) / sum(1 for _ in self._calls(drafted))

    def acceptance(self, drafted: int) -> float:
        """The share of guessed tokens that are the guide's, where `drafted` are guessed ahead."""
        calls = list(self._calls(drafted))
        return sum(good for good, _ in calls) / sum(ahead for _, ahead in calls)

    def _calls(self, drafted: int) -> Iterator[tuple[int, int]]:
        """For each call how many of the guessed tokens are right, and how many were guessed."""
        for answer in self.answers:
            at = 1
            while at < len(answer):
                ahead = answer[at : at + drafted]
                good = ahead.index(False) if False in ahead else len(ahead)
                yield good, len(ahead)
                at += 1 + good


def replies(guide: llama_cpp.Llama, cases: Iterable[Case]) -> Iterator[tuple[list[int], list[int]]]:
    """The tokens of every prompt and those of the guide's answer at temperature 0, its end among them."""
    form = Jinja2ChatFormatter(guide.metadata["tokenizer.chat_template"], eos_token="", bos_token="")
    for case in cases:
        messages = [{"role": "system", "content": case.system}] if case.system else []
        for turn in case.turns:
            messages.append({"role": "user", "content": turn.ask})
            ids = guide.tokenize(form(messages=messages).prompt.encode(), add_bos=False, special=True)
            said: list[int] = []
            for token in guide.generate(ids, temp=0.0):
                said.append(token)
                if token == guide.token_eos() or len(said) == LONGEST:
                    break
            yield ids, said
            messages.append({"role": "assistant", "content": guide.detokenize(said).decode()})


def agreement(guide: llama_cpp.Llama, draft: llama_cpp.Llama, cases: Iterable[Case]) -> Agreement:
    """Compare what the guide says with what the draft, given the same tokens, holds likeliest."""
    found = []
    for ids, said in replies(guide, cases):
        draft.reset()
        draft.eval(ids + said[:-1])
        guesses = draft.scores[len(ids) - 1 : len(ids) + len(said) - 1].argmax(axis=1)
        found.append(tuple(bool(guess == token) for guess, token in zip(guesses, said, strict=True)))
    return Agreement(tuple(found))
