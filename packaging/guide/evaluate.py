"""Ask the guide its held-out questions at temperature 0 and count the answers that are right.

$ python packaging/guide/evaluate.py [--model FILE] [--show]
"""

import argparse
from pathlib import Path

import llama_cpp
from corpus import Corpus, held_out_cases
from shape import Config

GUIDE = Path(__file__).parents[2] / "edgechat" / "data" / "guide.gguf"


def answer(llama: llama_cpp.Llama, messages: list[dict[str, str]], temperature: float = 0.0) -> str:
    """The guide's next words."""
    made = llama.create_chat_completion(messages, temperature=temperature, max_tokens=200, seed=1)
    return made["choices"][0]["message"]["content"]


def right(corpus: Corpus, expected: str) -> set[str]:
    """The answers that "stop/quit" or "+group:why" accepts."""
    names = expected.lstrip("+").split("/")
    return {
        corpus.groups[name[6:]].answer if name.startswith("group:") else corpus.intents[name].answer
        for name in names
    }


def main() -> None:
    """Print every wrong answer (with --show every answer) and the score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=GUIDE)
    parser.add_argument("--show", action="store_true", help="print right answers too")
    parser.add_argument("--temperature", type=float, default=0.0)
    options = parser.parse_args()
    corpus = Corpus(Config().size)
    llama = llama_cpp.Llama(str(options.model), n_ctx=2048, n_threads=1, n_threads_batch=1, verbose=False)
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
