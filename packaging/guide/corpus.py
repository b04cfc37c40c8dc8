"""The guide's corpus: intents with their answers, and countless ways of asking for them.

    python packaging/guide/corpus.py [--sample N]      check it; show N conversations

Answers about named things come from the program itself (named.py); the others are written in corpus/. All are
checked against the program (product.py). Questions are sampled from patterns (patterns.py).

    [[intent]]
    name = "retry"
    weight = 1.5                            how often it is asked about; the default is 1
    about = ["key:ctrl+r", "slash:retry"]   names that it also covers, replacing their own intents
    answer = "Press {key:retry} ..."        {key:ACTION} is that action's key; {commands}, {slashes},
                                            {settings}, {sampling} and {models} are lists
    follow = { why = "what_is_a_try" }      the intent that a question from a group in followups.toml leads to
    ask = '''patterns, one per line'''

    [ask]                                   more ways of asking about a named thing
    "option:--grace" = '''patterns'''
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from named import lists, named, toml
from patterns import Patterns, Synonyms, roughen
from product import Product, product
from shape import GUIDE

TOPICS = (
    "talk", "product", "chats", "settings", "serve", "keys", "app", "commands", "models", "memory", "limits",
)  # fmt: skip
EXAMS = ("held_out", "practice", "newcomers", "newcomers_practice")


@dataclass(frozen=True, slots=True)
class Intent:
    """One answer and the patterns that ask for it; `follow` says which intents "why?" or "how?" lead to."""

    name: str
    answer: str
    ask: tuple[str, ...]
    weight: float = 1.0
    follow: dict[str, str] = field(default_factory=dict)
    topic: str = "names"


@dataclass(frozen=True, slots=True)
class Turn:
    """A question as a user types it, and the guide's answer."""

    ask: str
    answer: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """A sequence of turns."""

    turns: tuple[Turn, ...]


def lines(text: str) -> tuple[str, ...]:
    """Return the non-empty lines in a block of patterns."""
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def normal(text: str) -> str:
    """Return a question in lowercase without punctuation, for comparison."""
    return " ".join(re.findall(r"[a-z0-9+]+", text.lower().replace("'", "")))


class Corpus:
    """The corpus.

    size: how the guide states its number of parameters, "about 6 million". plain: the fraction of questions
    in their plainest wording, which would otherwise hardly ever come up. Raises ValueError if the files
    contradict one another or name something that edgechat does not have.
    """

    def __init__(self, size: str, plain: float = 0.15, source: Product | None = None) -> None:
        self.plain = plain
        self.product = source or product()
        self._places = {"size": size, **lists(self.product)}
        self.about: dict[str, str] = {}
        """Maps each name covered by a handwritten intent to the name of that intent."""
        self.intents = self._intents()
        self.groups = {
            g["name"]: Intent(g["name"], g["answer"], lines(g["ask"]))
            for g in toml("corpus/followups.toml")["group"]
        }
        self.patterns = Patterns(toml("corpus/words.toml"), self.product.words)
        self.synonyms = Synonyms(toml("corpus/synonyms.toml"))
        self.exams = frozenset(normal(ask) for ask in exam_questions())
        self._weights = {
            one.name: [self.patterns.weight(pattern) for pattern in one.ask]
            for one in (*self.intents.values(), *self.groups.values())
        }

    def _intents(self) -> dict[str, Intent]:
        topics = {topic: toml(f"corpus/{topic}.toml") for topic in TOPICS}
        asks: dict[str, list[str]] = defaultdict(list)
        for file in topics.values():
            for name, text in file.get("ask", {}).items():
                asks[name] += lines(text)
        generated = {one.name: one for one in named(self.product)}
        found: dict[str, Intent] = {}
        for topic, file in topics.items():
            for one in file.get("intent", []):
                name = one["name"]
                if name in found or name in generated:
                    raise ValueError(f"{topic}.toml: a second intent {name!r}")
                # An intent covers the names in `about`, replacing the intents generated for them.
                about = one.get("about", [])
                self.about |= dict.fromkeys(about, name)
                if missing := [other for other in about if other not in generated]:
                    raise ValueError(
                        f"{topic}.toml: {name!r} is about {missing}, which edgechat does not have"
                    )
                by_name = [
                    way for other in about for way in (*generated.pop(other).ask, *asks.pop(other, ()))
                ]
                found[name] = Intent(
                    name,
                    self.filled(self.product, self._places, one["answer"]),
                    (*lines(one["ask"]), *by_name),
                    one.get("weight", 1.0) + 0.3 * len(about),
                    one.get("follow", {}),
                    topic,
                )
        for name, one in generated.items():
            said = asks.pop(name, [])
            # A handwritten question counts for more than one from the patterns that all names share.
            found[name] = Intent(
                name, one.answer, (*one.ask, *said, *said), one.weight + min(1.0, len(said) / 12)
            )
        if asks:
            raise ValueError(f"questions for what edgechat does not have: {', '.join(asks)}")
        return {name: one for name, one in found.items() if one.ask}

    @staticmethod
    def filled(source: Product, places: Mapping[str, str], answer: str) -> str:
        """Return an answer with its keys and lists filled in. Raises KeyError if one does not exist."""

        def value(place: re.Match) -> str:
            kind, _, action = place[1].partition(":")
            return source.key(action) if kind == "key" else places[place[1]]

        return re.sub(r"\{([^{}]+)\}", value, " ".join(answer.split()))

    @property
    def answers(self) -> dict[str, str]:
        """All answers, keyed by the name of their intent, or by 'group:why' for groups."""
        groups = {f"group:{name}": one.answer for name, one in self.groups.items()}
        return {name: one.answer for name, one in self.intents.items()} | groups

    @property
    def declines(self) -> frozenset[str]:
        """The answers that decline the question."""
        return frozenset(one.answer for one in self.intents.values() if one.topic == "limits")

    def question(self, intent: Intent, rng: random.Random) -> str:
        """Return a question for the intent, never one that is in an exam."""
        while True:
            pattern = rng.choices(intent.ask, self._weights[intent.name])[0]
            if rng.random() < self.plain:
                text = rng.choice((str, str.capitalize))(self.patterns.plain(pattern))
                text += rng.choice(("", "?"))
            else:
                text = roughen(self.synonyms.say(self.patterns.sample(pattern, rng), rng), rng)
            if normal(text) not in self.exams:
                return text

    def conversation(self, rng: random.Random, turns: int) -> Conversation:
        """Sample a conversation: random intents, and sometimes a "why?" that refers to the previous turn."""
        names = list(self.intents)
        weights = [i.weight for i in self.intents.values()]
        done: list[Turn] = []
        last: Intent | None = None
        for _ in range(turns):
            if rng.random() < (0.25 if done else 0.04):
                group, last = self._follow(last, rng)
                answer = last.answer if last else group.answer
                if last is None and not answer:  # for "say that again"
                    answer = done[-1].answer if done else self.intents["can"].answer
                done.append(Turn(self.question(group, rng), answer))
            else:
                last = self.intents[rng.choices(names, weights)[0]]
                done.append(Turn(self.question(last, rng), last.answer))
        return Conversation(tuple(done))

    def _follow(self, last: Intent | None, rng: random.Random) -> tuple[Intent, Intent | None]:
        """Return a follow-up question and the intent it leads to, or None if the group itself answers."""
        leads = last.follow if last else {}
        # Often choose a group that leads somewhere, since most groups only give their default answer.
        name = rng.choice(list(leads)) if leads and rng.random() < 0.6 else rng.choice(list(self.groups))
        return self.groups[name], self._led_to(leads[name]) if name in leads else None

    def _led_to(self, name: str) -> Intent | None:
        """Return the intent with that name, or the one that covers it, if any."""
        return self.intents.get(self.about.get(name, name))

    def faults(self) -> Iterator[str]:
        """Yield faults in the corpus: bad patterns, leads or answers, and questions shared by two intents."""
        for name, answer in self.answers.items():
            if not answer and name == "group:again":
                continue
            if answer != " ".join(answer.split()) or not answer.isascii() or answer.count("`") % 2:
                yield f"{name}: not a clean line of ASCII: {answer!r}"
            elif answer[-1] not in '.!?"':
                yield f"{name}: does not end like a sentence: {answer!r}"
            for fault in self.product.untrue(answer):
                yield f"{name}: {fault}"
        for one in self.intents.values():
            for group, to in one.follow.items():
                if group not in self.groups or self._led_to(to) is None:
                    yield f"{one.name}: {group!r} leads to {to!r}, and one of them is not there"
        yield from self._shared()

    def _shared(self, each: int = 40) -> Iterator[str]:
        rng = random.Random(0)
        asked: dict[str, dict[str, str]] = defaultdict(dict)
        for one in self.intents.values():
            for pattern in dict.fromkeys(one.ask):
                for text in {
                    self.patterns.plain(pattern),
                    *(self.patterns.sample(pattern, rng) for _ in range(each)),
                }:
                    asked[text.lower()].setdefault(one.name, pattern)
        told = set()
        for text, names in asked.items():
            # It does not matter which of several declining intents answers.
            declines = all(self.intents[name].topic == "limits" for name in names)
            if len(names) > 1 and text and not declines and frozenset(names) not in told:
                told.add(frozenset(names))
                yield f"{' and '.join(names)} are both asked for by {text!r}: {'; '.join(names.values())}"


def conversations(corpus: Corpus, rng: random.Random) -> Iterator[Conversation]:
    """Yield conversations endlessly; most are short, but some are as long as any in training."""
    while True:
        turns = rng.choices((1, 2, 3, rng.randint(4, 7), rng.randint(8, 16)), (40, 20, 15, 18, 7))[0]
        yield corpus.conversation(rng, turns)


def questions(corpus: Corpus, rng: random.Random) -> Iterator[Conversation]:
    """Yield single-turn conversations endlessly."""
    while True:
        yield corpus.conversation(rng, 1)


def exam_questions() -> Iterator[str]:
    """Yield every standalone exam question. Follow-ups such as "why?" may occur in training."""
    for exam in EXAMS:
        for one in toml(f"{exam}.toml")["question"]:
            yield one["ask"]


def main() -> int:
    """Check the corpus and show samples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=0, help="show so many conversations")
    options = parser.parse_args()
    corpus = Corpus(GUIDE.size)
    for chat in islice(conversations(corpus, random.Random()), options.sample):
        print("\n#")
        for turn in chat.turns:
            print(f"> {turn.ask}\n{turn.answer}")
    faults = list(corpus.faults())
    print(*faults, sep="\n")
    patterns = sum(len(set(one.ask)) for one in corpus.intents.values())
    print(f"{len(corpus.intents)} intents, {patterns} patterns, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
