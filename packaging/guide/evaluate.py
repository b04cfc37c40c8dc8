"""Run the guide's exam at temperature 0, and count the right answers.

    python packaging/guide/evaluate.py [--exam practice] [--model FILE] [--show]
    python packaging/guide/evaluate.py --draft     how often the draft predicts the guide's next token
    python packaging/guide/evaluate.py --card      both, for every quantization, written to the model card

`practice` may be consulted while writing the corpus; `held_out` is reserved for the final evaluation.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import card
import llama_cpp
from agreement import agreement
from corpus import EXAMS, Corpus
from exam import Marks, exam, invented, mark, right, stray, unknown_names
from places import DATA
from shape import GUIDE

from edgechat.native import ggml

STRAY = 300


def load(path: Path, every: bool = False) -> llama_cpp.Llama:
    """Load a model on one thread.

    every: keep the scores of all tokens instead of only the last one's.
    """
    ggml.start()  # the same llama.cpp as in edgechat, without AMX
    return llama_cpp.Llama(
        str(path), n_ctx=2048, n_threads=1, n_threads_batch=1, logits_all=every, verbose=False
    )


def show(marks: Marks, everything: bool) -> None:
    """Print the wrong answers (all answers if `everything` is set) and the score."""
    for one in marks.all:
        if everything or not one.right or one.untrue:
            state = "ok   " if one.right else "WRONG"
            print(f"{state} [{'/'.join(one.asked.right)}] {one.asked.ask}\n      {one.said}")
        for fault in one.untrue:
            print(f"      UNTRUE: {fault}")
    for kind, marked in (
        ("questions", marks.single),
        ("out of scope", marks.declined),
        ("turns", marks.dialogue),
    ):
        print(f"{kind}: {right(marked)} of {len(marked)} right ({right(marked) / max(1, len(marked)):.1%})")
    odd = sum(not one.known for one in marks.all)
    print(
        f"{len(marks.untrue)} things named that edgechat does not have; {odd} answers are none of the corpus"
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--exam", choices=EXAMS, default="held_out")
    parser.add_argument("--model", type=Path, default=DATA / "guide.gguf")
    parser.add_argument("--show", action="store_true", help="print right answers too")
    parser.add_argument("--stray", action="store_true", help=f"ask {STRAY:,} stray questions too")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument(
        "--draft", type=Path, nargs="?", const=DATA / "guide-draft.gguf", help="score this draft"
    )
    parser.add_argument("--card", action="store_true", help="write the model card")
    options = parser.parse_args()
    corpus = Corpus(GUIDE.size)
    cases = exam(options.exam)
    if missing := unknown_names(corpus, cases):
        raise SystemExit(
            f"{options.exam}.toml expects {', '.join(sorted(missing))}, and the corpus has no such intent"
        )
    if options.card:
        card.write(corpus, exam("held_out"), load, STRAY)
        return
    llama = load(options.model)
    if options.draft:
        found = agreement(llama, load(options.draft, every=True), cases)
        print(f"{found.share:.1%} of the guide's tokens foreseen, {found.stretch:.1f} in a row")
        for drafted in (4, 8, 16):
            accepted, per_call = found.acceptance(drafted), found.per_call(drafted)
            print(f"{drafted} drafted: {accepted:.1%} accepted, {per_call:.2f} tokens a call")
        return
    show(mark(corpus, llama, cases, options.temperature), options.show)
    if options.stray:
        wrong = invented(corpus, llama, stray(corpus, STRAY))
        for ask, said, faults in wrong:
            print(f"INVENTED {ask}\n      {said}\n      {'; '.join(faults)}")
        print(f"{len(wrong)} of {STRAY:,} answers to stray questions name what edgechat does not have")


if __name__ == "__main__":
    main()
