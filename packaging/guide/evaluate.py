"""Ask the guide its held-out questions at temperature 0 and count the answers that are right.

$ python packaging/guide/evaluate.py [--model FILE] [--show]
$ python packaging/guide/evaluate.py --draft       (how often its draft foresees the guide's next token)
"""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import llama_cpp
from corpus import Corpus, held_out_cases
from llama_cpp.llama_chat_format import Jinja2ChatFormatter
from shape import GUIDE

DATA = Path(__file__).parents[2] / "edgechat" / "data"
LONGEST = 200


def answer(llama: llama_cpp.Llama, messages: list[dict[str, str]], temperature: float = 0.0) -> str:
    """The guide's next words."""
    made = llama.create_chat_completion(messages, temperature=temperature, max_tokens=LONGEST, seed=1)
    return made["choices"][0]["message"]["content"]


def right(corpus: Corpus, expected: str) -> set[str]:
    """The answers that "stop/quit" or "+group:why" accepts."""
    names = expected.lstrip("+").split("/")
    return {
        corpus.groups[name[6:]].answer if name.startswith("group:") else corpus.intents[name].answer
        for name in names
    }


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
        calls = 0
        for answer in self.answers:
            at = 1
            while at < len(answer):
                ahead = answer[at : at + drafted]
                at += 1 + (ahead.index(False) if False in ahead else len(ahead))
                calls += 1
        return sum(len(answer) - 1 for answer in self.answers) / calls


def replies(guide: llama_cpp.Llama, cases: Iterable[dict]) -> Iterator[tuple[list[int], list[int]]]:
    """The tokens of every prompt and those of the guide's answer at temperature 0, its end among them."""
    form = Jinja2ChatFormatter(guide.metadata["tokenizer.chat_template"], eos_token="", bos_token="")
    for case in cases:
        messages = [{"role": "system", "content": case["system"]}] if "system" in case else []
        for ask, _ in case["turns"]:
            messages.append({"role": "user", "content": ask})
            ids = guide.tokenize(form(messages=messages).prompt.encode(), add_bos=False, special=True)
            said: list[int] = []
            for token in guide.generate(ids, temp=0.0):
                said.append(token)
                if token == guide.token_eos() or len(said) == LONGEST:
                    break
            yield ids, said
            messages.append({"role": "assistant", "content": guide.detokenize(said).decode()})


def agreement(guide: llama_cpp.Llama, draft: llama_cpp.Llama, cases: Iterable[dict]) -> Agreement:
    """Compare what the guide says with what the draft, given the same tokens, holds likeliest."""
    found = []
    for ids, said in replies(guide, cases):
        draft.reset()
        draft.eval(ids + said[:-1])
        guesses = draft.scores[len(ids) - 1 : len(ids) + len(said) - 1].argmax(axis=1)
        found.append(tuple(bool(guess == token) for guess, token in zip(guesses, said, strict=True)))
    return Agreement(tuple(found))


def load(path: Path, every: bool = False) -> llama_cpp.Llama:
    """A model on one thread; `every`: it keeps the scores of every token and not of the last one only."""
    return llama_cpp.Llama(
        str(path), n_ctx=2048, n_threads=1, n_threads_batch=1, logits_all=every, verbose=False
    )


def main() -> None:
    """Print every wrong answer (with --show every answer) and the score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=DATA / "guide.gguf")
    parser.add_argument(
        "--draft", type=Path, nargs="?", const=DATA / "guide-draft.gguf", help="score this draft instead"
    )
    parser.add_argument("--show", action="store_true", help="print right answers too")
    parser.add_argument("--temperature", type=float, default=0.0)
    options = parser.parse_args()
    corpus = Corpus(GUIDE.size)
    llama = load(options.model)
    if options.draft:
        found = agreement(llama, load(options.draft, every=True), held_out_cases())
        print(f"{found.share:.1%} of the guide's tokens foreseen, {found.stretch:.1f} in a row")
        print("; ".join(f"{n} drafted: {found.per_call(n):.2f} tokens a call" for n in (4, 8, 16)))
        return
    scores = {"single": [0, 0], "dialogue": [0, 0]}
    for case in held_out_cases():
        kind = "single" if len(case["turns"]) == 1 else "dialogue"
        messages = [{"role": "system", "content": case["system"]}] if "system" in case else []
        for ask, expected in case["turns"]:
            messages.append({"role": "user", "content": ask})
            said = answer(llama, messages, options.temperature)
            messages.append({"role": "assistant", "content": said})
            good = said in right(corpus, expected)
            scores[kind][0] += good
            scores[kind][1] += 1
            if options.show or not good:
                print(f"{'ok   ' if good else 'WRONG'} [{expected}] {ask}\n      {said}")
    for kind, (good, asked) in scores.items():
        print(f"{kind}: {good} of {asked} ({good / asked:.0%})")


if __name__ == "__main__":
    main()
