"""Patterns for questions, and the different ways people type them.

`(how do i|how to) stop [the|an] answer`: parentheses choose one alternative, square brackets choose one or
nothing, and `{name}` takes a word from words.toml. Some words in the result are then replaced with synonyms
(synonyms.toml), and the text is roughened: letter case, typos, fillers, a missing question mark.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Collection, Mapping

MADE_UP = "madeup"


class Patterns:
    """Parses patterns once and samples them; the module's docstring describes the grammar.

    A tree is a list of alternatives, each of which is a list of strings, names of word lists, and trees.
    """

    def __init__(self, words: Mapping[str, str], taken: Collection[str] = ()) -> None:
        """taken: words that {madeup} must not produce, because they already mean something."""
        self._words = words
        self._taken = taken
        self._parsed: dict[str, list] = {}

    def sample(self, pattern: str, rng: random.Random) -> str:
        """Return a random text that matches the pattern."""
        return _tidy(self._pick(self._tree(pattern), rng))

    def plain(self, pattern: str) -> str:
        """Return the pattern's plainest text: always the first alternative, without optional parts."""
        return _tidy(self._first(self._tree(pattern)))

    def weight(self, pattern: str) -> float:
        """Return how often to draw the pattern, which is more often if it stands for many texts."""
        return 1.0 + math.log10(self._count(self._tree(pattern)))

    def _count(self, tree: list) -> float:
        return sum(math.prod(map(self._ways, sequence)) for sequence in tree)

    def _ways(self, part: str | list | dict) -> float:
        if isinstance(part, str):
            return 1.0
        if isinstance(part, dict):
            # However long a word list is, it only counts as a few ways of asking.
            return 3.0
        return self._count(part)

    def _first(self, tree: list) -> str:
        text = ""
        for part in [] if [] in tree else tree[0]:
            if isinstance(part, str):
                text += part
            elif isinstance(part, list):
                text += self._first(part)
            elif part["name"] == MADE_UP:
                text += "blorp"
            else:
                text += self._first(self._tree(self._words[part["name"]]))
        return text

    def _tree(self, pattern: str) -> list:
        if pattern not in self._parsed:
            tree, end = self._parse(pattern, 0, "")
            if end != len(pattern):
                raise ValueError(f"unbalanced bracket at {end} in {pattern!r}")
            self._parsed[pattern] = tree
        return self._parsed[pattern]

    def _parse(self, text: str, at: int, closing: str) -> tuple[list, int]:
        """Parse alternatives up to `closing`; return them and the position after them."""
        tree: list[list] = [[]]
        while at < len(text) and (not closing or text[at] != closing):
            char = text[at]
            if char in "([":
                inner, at = self._parse(text, at + 1, ")" if char == "(" else "]")
                tree[-1].append(inner + [[]] * len(inner) if char == "[" else inner)
            elif char == "{":
                end = text.index("}", at)
                name = text[at + 1 : end]
                if name != MADE_UP and name not in self._words:
                    raise ValueError(f"no words {name!r} in {text!r}")
                tree[-1].append({"name": name})
                at = end
            elif char == "|":
                tree.append([])
            elif char in ")]}":
                raise ValueError(f"stray {char!r} at {at} in {text!r}")
            else:
                run = re.compile(r"[^()\[\]{}|]+").match(text, at)
                assert run is not None
                tree[-1].append(run[0])
                at = run.end() - 1
            at += 1
        if closing and at >= len(text):
            raise ValueError(f"missing {closing!r} in {text!r}")
        return tree, at

    def _pick(self, tree: list, rng: random.Random) -> str:
        text = ""
        for part in rng.choice(tree):
            if isinstance(part, str):
                text += part
            elif isinstance(part, list):
                text += self._pick(part, rng)
            elif part["name"] == MADE_UP:
                text += self._made_up(rng)
            else:
                text += self._pick(self._tree(self._words[part["name"]]), rng)
        return text

    def _made_up(self, rng: random.Random) -> str:
        while (word := made_up_word(rng)) in self._taken:
            pass
        return word


def _tidy(text: str) -> str:
    return " ".join(text.split())


class Synonyms:
    """Occasionally replaces words with synonyms, wherever they occur."""

    def __init__(self, table: Mapping[str, str], share: float = 0.15) -> None:
        self._others = {said: others.split("|") for said, others in table.items()}
        self._share = share
        longest_first = sorted(map(re.escape, self._others), key=len, reverse=True)
        self._known = (
            re.compile(rf"(?<![\w/+-])(?:{'|'.join(longest_first)})(?![\w/+-])") if longest_first else None
        )

    def say(self, text: str, rng: random.Random) -> str:
        """Return the text with some words replaced."""
        if self._known is None:
            return text
        return self._known.sub(lambda found: self._other(found[0], rng), text)

    def _other(self, word: str, rng: random.Random) -> str:
        return rng.choice(self._others[word]) if rng.random() < self._share else word


CONSONANTS = (*"bcdfghjklmnprstvwz", "bl", "br", "ch", "cl", "dr", "fl", "gr", "pl", "sh", "st", "th", "tr")
VOWELS = (*"aaeeioou", "oo", "ee", "ai", "ou")


def made_up_word(rng: random.Random) -> str:
    """Return a word that does not exist, so that the guide learns to decline unknown names."""
    word = ""
    for _ in range(rng.choice((1, 2, 2, 3))):
        word += rng.choice(CONSONANTS)
        word += rng.choice(VOWELS)
    return word + rng.choice(("", "n", "r", "s", "t", "x", "ck", "ng", "lp"))


def roughen(text: str, rng: random.Random) -> str:
    """Return the question as someone in a hurry would type it."""
    if rng.random() < 0.15:
        text = rng.choice(PREFIXES) + " " + text
    if rng.random() < 0.10:
        text = text.rstrip("?.! ") + " " + rng.choice(SUFFIXES)
    if rng.random() < 0.10:
        text = drop_small_word(text, rng)
    if rng.random() < 0.15:
        text = drop_a_word(text, rng)
    if rng.random() < 0.25:
        text = text.replace("'", "")
    for _ in range(rng.choice((0, 0, 0, 0, 0, 0, 1, 1, 2))):
        text = mistype(text, rng)
    style = rng.random()
    if style < 0.5:
        text = re.sub(r"\bi\b", "I", text[:1].upper() + text[1:])
    elif style < 0.53:
        text = text.upper()
    elif style < 0.56:
        text = text.title()
    if text[-1:].isalnum():
        text += rng.choices(("", "?", ".", "!", " ?", "??", "...", "?!"), (40, 48, 6, 2, 2, 1, 1, 1))[0]
    return text


PREFIXES = (
    "please", "hi,", "hello,", "hey,", "hi!", "hello.", "ok,", "and", "so", "but", "well,", "um,", "sorry,",
    "now", "quick question:", "question:", "excuse me,", "hey guide,", "guide,", "also,", "then", "thanks.",
    "ok.", "thanks,", "and also,", "another question:", "one more:", "please tell me:", "i wonder,",
    "just wondering,", "tell me,", "dear guide,", "do you know:", "i would like to know:",
    "can you tell me:", "could you tell me", "btw",
)  # fmt: skip
SUFFIXES = (
    "please", "thanks", "in edgechat", "here", "in this app", "pls", "then", "exactly", "for me", "again",
    "now", "thank you", "by the way", "in here", "today", "actually", "in this program", "with this",
    "if i may ask", "guide",
)  # fmt: skip
SMALL_WORDS = {"a", "an", "the", "to", "do", "i", "is", "it", "of", "my", "me", "does", "can", "are", "you"}
NEIGHBOURS = {
    "a": "sq", "b": "vn", "c": "xv", "d": "sf", "e": "wr", "f": "dg", "g": "fh", "h": "gj", "i": "uo",
    "j": "hk", "k": "jl", "l": "k", "m": "n", "n": "bm", "o": "ip", "p": "o", "q": "wa", "r": "et",
    "s": "ad", "t": "ry", "u": "yi", "v": "cb", "w": "qe", "x": "zc", "y": "tu", "z": "x",
}  # fmt: skip


def drop_small_word(text: str, rng: random.Random) -> str:
    """Leave out one small word, as people do when they are terse."""
    words = text.split()
    small = [at for at, word in enumerate(words) if word in SMALL_WORDS]
    if not small or len(words) < 4:
        return text
    del words[rng.choice(small)]
    return " ".join(words)


def drop_a_word(text: str, rng: random.Random) -> str:
    """Leave out any one word from a long question, which usually remains clear without it."""
    words = text.split()
    if len(words) < 6:
        return text
    del words[rng.randrange(len(words))]
    return " ".join(words)


def mistype(text: str, rng: random.Random) -> str:
    """Make one typo in a longer word, but never in an option or key."""
    spots = list(re.finditer(r"(?<![-\w+])[a-z]{4,}(?![\w+])", text))
    if not spots:
        return text
    word = rng.choice(spots)
    at = rng.randrange(word.start() + 1, word.end() - 1)
    slip = rng.randrange(4)
    if slip == 0:
        return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    if slip == 1:
        return text[:at] + text[at + 1 :]
    if slip == 2:
        return text[:at] + text[at] + text[at:]
    return text[:at] + rng.choice(NEIGHBOURS[text[at]]) + text[at + 1 :]
