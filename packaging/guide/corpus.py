"""The guide's corpus: intents with their answers, and endless ways to ask for them.

A question is written as a pattern, `(how do i|how to) stop [the|an] answer`: round brackets choose one
alternative, square ones choose one or nothing, `{name}` takes a word from words.toml. A conversation is
sampled from patterns and then roughened the way people type: case, typos, fillers, no question mark.

Nothing here needs more than the standard library, so that the tests can read the corpus.
"""

import random
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
TOPICS = ("talk", "product", "keys", "chats", "commands", "models", "limits")


@dataclass(frozen=True, slots=True)
class Intent:
    """One answer and the patterns that ask for it; `follow` says where "why?" or "how?" lead from here."""

    name: str
    answer: str
    ask: tuple[str, ...]
    weight: float = 1.0
    follow: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """A question as a user types it, and the guide's answer."""

    ask: str
    answer: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns in order, after a system prompt that is often empty."""

    system: str
    turns: tuple[Turn, ...]


def lines(text: str) -> tuple[str, ...]:
    """The non-empty lines of a block of patterns."""
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def toml(name: str) -> dict:
    """A TOML file beside this one."""
    return tomllib.loads((HERE / name).read_text(encoding="utf-8"))


def normal(text: str) -> str:
    """A question without case and punctuation: two that are equal here are the same question."""
    return " ".join(re.findall(r"[a-z0-9+]+", text.lower().replace("'", "")))


class Patterns:
    """Parses patterns once and samples them; the grammar is in the module's docstring."""

    def __init__(self, words: dict[str, str]) -> None:
        self._words = words
        self._parsed: dict[str, list] = {}

    def sample(self, pattern: str, rng: random.Random) -> str:
        """One text that the pattern stands for."""
        return " ".join(self._pick(self._alternatives(pattern), rng).split())

    def plain(self, pattern: str) -> str:
        """The pattern's plainest text: the first alternative everywhere, and nothing that may be left out."""
        return " ".join(self._first(self._alternatives(pattern)).split())

    def _first(self, alternatives: list) -> str:
        text = ""
        for part in [] if [] in alternatives else alternatives[0]:
            if isinstance(part, str):
                text += part
            elif isinstance(part, list):
                text += self._first(part)
            elif part["name"] == "madeup":
                text += "blorp"
            else:
                text += self._first(self._alternatives(self._words[part["name"]]))
        return text

    def _alternatives(self, pattern: str) -> list:
        if pattern not in self._parsed:
            tree, end = self._parse(pattern, 0, "")
            if end != len(pattern):
                raise ValueError(f"unbalanced bracket at {end} in {pattern!r}")
            self._parsed[pattern] = tree
        return self._parsed[pattern]

    def _parse(self, text: str, at: int, closing: str) -> tuple[list, int]:
        """Read alternatives up to `closing`: a list of sequences of strings, names and inner lists."""
        alternatives: list[list] = [[]]
        while at < len(text) and (not closing or text[at] != closing):
            char = text[at]
            if char in "([":
                inner, at = self._parse(text, at + 1, ")" if char == "(" else "]")
                alternatives[-1].append(inner + [[]] * len(inner) if char == "[" else inner)
            elif char == "{":
                end = text.index("}", at)
                alternatives[-1].append({"name": text[at + 1 : end]})
                at = end
            elif char == "|":
                alternatives.append([])
            elif char in ")]}":
                raise ValueError(f"stray {char!r} at {at} in {text!r}")
            else:
                run = re.compile(r"[^()\[\]{}|]+").match(text, at)
                alternatives[-1].append(run[0])
                at = run.end() - 1
            at += 1
        if closing and at >= len(text):
            raise ValueError(f"missing {closing!r} in {text!r}")
        return alternatives, at

    def _pick(self, alternatives: list, rng: random.Random) -> str:
        text = ""
        for part in rng.choice(alternatives):
            if isinstance(part, str):
                text += part
            elif isinstance(part, list):
                text += self._pick(part, rng)
            elif part["name"] == "madeup":
                text += made_up_word(rng)
            else:
                text += self._pick(self._alternatives(self._words[part["name"]]), rng)
        return text


CONSONANTS = (*"bcdfghjklmnprstvwz", "bl", "br", "ch", "cl", "dr", "fl", "gr", "pl", "sh", "st", "th", "tr")
VOWELS = (*"aaeeioou", "oo", "ee", "ai", "ou")


def made_up_word(rng: random.Random) -> str:
    """A word nobody has seen: what the guide has never heard of, it must not answer about."""
    word = ""
    for _ in range(rng.choice((1, 2, 2, 3))):
        word += rng.choice(CONSONANTS)
        word += rng.choice(VOWELS)
    return word + rng.choice(("", "n", "r", "s", "t", "x", "ck", "ng", "lp"))


def roughen(text: str, rng: random.Random) -> str:
    """The question as somebody in a hurry would type it."""
    if rng.random() < 0.15:
        text = rng.choice(PREFIXES) + " " + text
    if rng.random() < 0.10:
        text = text.rstrip("?.! ") + " " + rng.choice(SUFFIXES)
    if rng.random() < 0.10:
        text = drop_small_word(text, rng)
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
    """Leave out one word of the kind that terse people leave out."""
    words = text.split()
    small = [at for at, word in enumerate(words) if word in SMALL_WORDS]
    if not small or len(words) < 4:
        return text
    del words[rng.choice(small)]
    return " ".join(words)


def mistype(text: str, rng: random.Random) -> str:
    """One slip of a finger inside a longer word; options and keys are left as they are."""
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


class Corpus:
    """The written corpus. `size` is how the guide speaks of its own parameters, "about 4 million".

    `plain` is the share of questions in their plainest words: of all the ways a pattern can be said, the one
    that people say most would hardly ever be drawn.
    """

    def __init__(self, size: str, plain: float = 0.0) -> None:
        self.plain = plain
        groups = toml("corpus/followups.toml")["group"]
        self.intents = {
            i["name"]: Intent(
                i["name"],
                i["answer"].replace("{size}", size),
                lines(i["ask"]),
                i.get("weight", 1.0),
                i.get("follow", {}),
            )
            for topic in TOPICS
            for i in toml(f"corpus/{topic}.toml")["intent"]
        }
        self.groups = {g["name"]: Intent(g["name"], g["answer"], lines(g["ask"])) for g in groups}
        self.systems = lines(toml("corpus/systems.toml")["prompts"])
        self.patterns = Patterns(toml("corpus/words.toml"))
        self.held_out = frozenset(normal(ask) for ask in held_out_questions())

    def question(self, intent: Intent, rng: random.Random) -> str:
        """A question for the intent that is not one of the held-out ones."""
        while True:
            pattern = rng.choice(intent.ask)
            if rng.random() < self.plain:
                text = rng.choice((str, str.capitalize))(self.patterns.plain(pattern))
                text += rng.choice(("", "?"))
            else:
                text = roughen(self.patterns.sample(pattern, rng), rng)
            if normal(text) not in self.held_out:
                return text

    def conversation(self, rng: random.Random, turns: int) -> Conversation:
        """Sample a conversation: intents at random, now and then a "why?" that leans on the turn before."""
        system = ""
        if rng.random() < 0.25:
            system = self.patterns.sample(rng.choice(self.systems), rng)
        names = list(self.intents)
        weights = [i.weight for i in self.intents.values()]
        done: list[Turn] = []
        last: Intent | None = None
        for _ in range(turns):
            if rng.random() < (0.25 if done else 0.04):
                group, last = self._follow(last, rng)
                answer = last.answer if last else group.answer
                if last is None and not answer:  # "say that again"
                    answer = done[-1].answer if done else self.intents["can"].answer
                done.append(Turn(self.question(group, rng), answer))
            else:
                last = self.intents[rng.choices(names, weights)[0]]
                done.append(Turn(self.question(last, rng), last.answer))
        return Conversation(system, tuple(done))

    def _follow(self, last: Intent | None, rng: random.Random) -> tuple[Intent, Intent | None]:
        """A leaning question, and the intent it leads to from `last` (None: the group's own answer)."""
        leads = last.follow if last else {}
        # Half of the time one that leads somewhere, or the leads would drown among the defaults.
        name = rng.choice(list(leads)) if leads and rng.random() < 0.6 else rng.choice(list(self.groups))
        return self.groups[name], self.intents[leads[name]] if name in leads else None


def conversations(corpus: Corpus, rng: random.Random) -> Iterator[Conversation]:
    """Conversations without end: most are short, some as long as training ever sees."""
    while True:
        turns = rng.choices((1, 2, 3, rng.randint(4, 7), rng.randint(8, 16)), (40, 20, 15, 18, 7))[0]
        yield corpus.conversation(rng, turns)


def questions(corpus: Corpus, rng: random.Random) -> Iterator[Conversation]:
    """Conversations of a single turn, without end."""
    while True:
        yield corpus.conversation(rng, 1)


def held_out_cases() -> list[dict]:
    """The held-out conversations: `turns` of [question, expected intents], and a `system` prompt or none."""
    data = toml("held_out.toml")
    single = [{"turns": [[ask, name]]} for name, asks in data["single"].items() for ask in lines(asks)]
    return single + data["dialogue"]


def held_out_questions() -> Iterator[str]:
    """Every held-out question that stands alone; "why?" and its like may be trained on."""
    for case in held_out_cases():
        for ask, name in case["turns"]:
            if not name.startswith("+"):
                yield ask
