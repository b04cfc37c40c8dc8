"""How often the draft model predicts the guide's next token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import llama_cpp
from exam import LONGEST, Case
from llama_cpp.llama_chat_format import Jinja2ChatFormatter


@dataclass(frozen=True, slots=True)
class Agreement:
    """Records which tokens of each answer the draft predicted, given the tokens before them."""

    answers: tuple[tuple[bool, ...], ...]

    @property
    def share(self) -> float:
        """The fraction of tokens that were predicted."""
        return sum(map(sum, self.answers)) / sum(map(len, self.answers))

    @property
    def stretch(self) -> float:
        """The mean length of unbroken runs of predicted tokens."""
        rows = [sum(row) for answer in self.answers for good, row in groupby(answer) if good]
        return sum(rows) / len(rows)

    def per_call(self, drafted: int) -> float:
        """Return the tokens gained per call of the guide when `drafted` tokens are drafted ahead.

        The call that reads the prompt and yields the first token is not counted.
        """
        return sum(len(answer) - 1 for answer in self.answers) / sum(1 for _ in self._calls(drafted))

    def acceptance(self, drafted: int) -> float:
        """Return the acceptance rate when `drafted` tokens are drafted ahead."""
        calls = list(self._calls(drafted))
        return sum(good for good, _ in calls) / sum(ahead for _, ahead in calls)

    def _calls(self, drafted: int) -> Iterator[tuple[int, int]]:
        """Yield, for each call, how many drafted tokens were right and how many were drafted."""
        for answer in self.answers:
            at = 1
            while at < len(answer):
                ahead = answer[at : at + drafted]
                good = ahead.index(False) if False in ahead else len(ahead)
                yield good, len(ahead)
                at += 1 + good


def replies(guide: llama_cpp.Llama, cases: Iterable[Case]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the tokens of each prompt and of the guide's answer at temperature 0, end token included."""
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
    """Compare the guide's answers with the tokens that the draft considers most likely at each position."""
    found = []
    for ids, said in replies(guide, cases):
        draft.reset()
        draft.eval(ids + said[:-1])
        guesses = draft.scores[len(ids) - 1 : len(ids) + len(said) - 1].argmax(axis=1)
        found.append(tuple(bool(guess == token) for guess, token in zip(guesses, said, strict=True)))
    return Agreement(tuple(found))
