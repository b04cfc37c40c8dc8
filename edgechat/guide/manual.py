"""Search of the bundled documentation, which is split into table rows, list items, commands and paragraphs.

These passages are ranked by BM25 (Robertson and Zaragoza, 2009), with headings as additional words (BM25F).
Unlike a search in a collection, this one corrects typos, using the words in the documentation. Its scores are
comparable across questions, so thresholds can be applied to them.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from edgechat.base import paths

WHERE = "https://github.com/edgechat/edgechat/blob/main/docs/"
_PASSAGES = 3
"""Maximum number of passages in an answer. Each must score at least `_NEAR` times as high as the best one."""
_NEAR = 0.8
_LONGEST = 500
"""Maximum length of a passage, in characters. Longer paragraphs are reduced to their best sentences."""
# Tuned on the practice exams: weights of title and headings, k and b of BM25, weights of similar words.
_TITLE, _HEADING, _K, _B, _ALIKE, _CORRECTED = 1.0, 0.5, 1.2, 0.45, 0.8, 0.8
_BACKGROUND = {"architecture.md": 0.4, "reports.md": 0.4, "scale.md": 0.4, "phones.md": 0.6}
"""Weights for pages about topics that users rarely need."""
_LEAD, _HEADED, _DEFINED, _GLOSSARY, _PROGRAM = 1.1, 1.3, 1.6, 0.85, 0.5
"""Weights for the first paragraph of a section, for text below a heading that contains the whole question,
for definitions of a term in the question, for other definitions, and for lines from a program.
"""
_DEFINITION = re.compile(
    r"(what|whats|what's|wat|explain|define)\b|.*\b(means?|meaning|explained)\b|^\W*\w+( \w+)?\W*$", re.DOTALL
)
_WORD = re.compile(r"[a-z0-9]+(?:\.[0-9]+)?")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*\"“])")
_EMPTY_WORDS = """
a an the is are was were be been being am do does did doing done i me my mine we us our you your it its this
that these those and or but if then than as at by for from in into of on onto to with without out up down
how what which who whom whose when where why can could should would will shall may might must has have had
having not no nor so too very just only there here about over under again please hi hey ok want wants need
needs like get gets got let lets say says said tell tells thing things something anything stuff way ways use
uses used using work works possible try some any all each edgechat app program u im dont doesnt isnt cant s
t m d re ve ll someone anybody make makes made go goes going give gives given know mean means meaning whats
now right look looks see good best old set setup explain anyway however able trying own
"""
"""Words in users' questions that say nothing about the answer."""
_SAYS_NOTHING = frozenset(_EMPTY_WORDS.split())
_ALIKE_WORDS = """
abort cancel halt: stop
picture photo screenshot pic pictures: image
begin: start
connect hook plug: launch
delete remove erase: rm remove delete
shortcut hotkey button: key
dark light white black: theme
broken corrupt corrupted damaged: damage verify
slow quick: fast speed
graphics video card nvidia: gpu
notebook laptop computer pc box: machine
update newer: upgrade
catalog: catalogue
password token: key
internet online: network
mac macbook: mac apple
disk drive directory: folder
pdfs pdf: pdf documents
cli shell terminal commandline: command line
chat chats discussion: conversation
colour color: colours
config configuration: settings
question prompt message: prompt question
"""
"""Words that newcomers use, each with the words that the documentation uses instead."""
_ENDINGS = (
    ("ization", "iz"), ("isation", "iz"), ("izing", "iz"), ("ising", "iz"), ("ies", "y"), ("sses", "ss"),
    ("ations", "at"), ("ation", "at"), ("ings", ""), ("ing", ""), ("edly", ""), ("ed", ""), ("es", ""),
    ("ers", "er"), ("s", ""),
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Excerpt:
    """A passage on a page: a paragraph, a list item, a table row, or a command with its comment."""

    page: str
    """The name of the page's file, such as 'app.md'."""
    title: str
    headings: tuple[str, ...]
    """The headings between the title and the passage, from the outermost to the innermost."""
    kind: str
    """'paragraph', 'item', 'row' or 'command'."""
    text: str
    is_lead: bool
    """Whether the passage is the first paragraph below its heading."""

    @property
    def place(self) -> str:
        """A link to the passage, such as '[The app, “Keys”](…)'."""
        name = f"{self.title}, “{self.headings[-1]}”" if self.headings else self.title
        return f"[{name}]({WHERE}{self.page}{'#' + _anchor(self.headings[-1]) if self.headings else ''})"

    def shown(self, asked: set[str]) -> str:
        """Return the passage as Markdown. A long paragraph is cut to the part with the most `asked` stems."""
        text = unlinked(self.text)
        if self.kind == "command":
            return "```\n" + re.sub(" {3,}# ", "  # ", text) + "\n```"
        if self.kind == "row":
            first, *cells = (cell.strip() for cell in re.split(r"(?<!\\)\|", text.strip().strip("|")))
            return f"- {first if '`' in first else f'**{first}**'}: {'; '.join(filter(None, cells))}"
        if len(text) <= _LONGEST:
            return text
        sentences, best, most = _SENTENCE.split(" ".join(text.split())), "", -1
        for start in range(len(sentences)):
            part, end = sentences[start], start + 1
            while end < len(sentences) and len(part) + len(sentences[end]) < _LONGEST:
                part, end = f"{part} {sentences[end]}", end + 1
            if (count := len(asked & set(_stems(part)))) > most:
                best, most = part, count
        return best


@dataclass(frozen=True, slots=True)
class Lookup:
    """The result of a search."""

    passages: tuple[Excerpt, ...] = ()
    """The passages, best first; empty if no word of the question occurs in the documentation."""
    score: float = 0.0
    """BM25 score of the best passage: about 5 if one distinctive word matches, 20 if several do."""
    coverage: float = 0.0
    """How much of the question the best passage covers, from 0 to 1, with words weighted by rarity."""
    asked: frozenset[str] = frozenset()
    """The stems that were searched for."""

    @property
    def text(self) -> str:
        """The answer in the documentation's own words, with links to pages and headings."""
        shown, place = "", ""
        for one in self.passages:
            if one.place != place:
                place = one.place
                shown += f"\n\nAnd from {place}" if shown else f"{FROM}{place}"
            shown += f"\n\n{one.shown(set(self.asked))}"
        return shown


FROM = "From the documentation, "


class Manual:
    """A searchable set of pages from a folder: about 1,200 passages, 2 ms per question."""

    def __init__(self, folder: Path | None = None) -> None:
        """folder: the folder that contains the pages, or None for the bundled documentation."""
        pages = sorted((folder or paths.shipped("docs")).glob("*.md"))
        self.passages = [one for page in pages for one in _passages(page)]

    def search(self, question: str) -> Lookup:
        """Return the passages that answer a question best, even if they answer it poorly."""
        scores, covered, whole = defaultdict[int, float](float), defaultdict[int, float](float), 0.0
        asked = self._asked(question)
        bags, postings = self._index
        mean = sum(self._lengths) / len(self._lengths)
        for stems in asked:
            if not stems:
                whole += math.log(len(bags))
                continue
            most = max(weight * self._rarity(stem) for stem, weight in stems)
            whole += most
            best: dict[int, float] = {}
            for stem, weight in stems:
                for at in postings[stem]:
                    count, size = bags[at][stem], self._lengths[at] / mean
                    value = weight * self._rarity(stem) * count * (_K + 1)
                    best[at] = max(best.get(at, 0.0), value / (count + _K * (1 - _B + _B * size)))
            for at, value in best.items():
                scores[at] += value
                covered[at] += min(value, most)
        stems_asked = frozenset(stem for stems in asked for stem, _ in stems)
        if not scores:
            return Lookup()
        first = {stems[0][0] for stems in asked if stems}
        defines = _DEFINITION.match(question.lower()) is not None
        for at in scores:
            scores[at] *= self._weight(at, first, defines=defines)
        order = sorted(scores, key=lambda at: (-scores[at], at))[:_PASSAGES]
        top = scores[order[0]]
        found = [self.passages[at] for at in order if scores[at] >= _NEAR * top]
        if self._is_headed(found[0], first) and not (defines and self._is_term(found[0], first)):
            found = self._section(found[0])
        # Group passages by section, with sections in the order of their best passages.
        places = list(dict.fromkeys(one.place for one in found))
        together = tuple(sorted(found, key=lambda one: places.index(one.place)))
        said = set(bags[order[0]])
        share = sum(max((w * self._rarity(s) for s, w in stems if s in said), default=0.0) for stems in asked)
        return Lookup(together, top, share / whole, stems_asked)

    @staticmethod
    def _is_headed(one: Excerpt, asked: set[str]) -> bool:
        """Return True if the heading above a passage contains every word of the question."""
        return bool(asked and one.headings) and asked <= set(_stems(one.headings[-1]))

    @staticmethod
    def _is_term(one: Excerpt, asked: set[str]) -> bool:
        """Return True if a passage defines a term that contains every word of the question."""
        term = re.match(r"- \*\*(.+?)\*\*", one.text)
        return term is not None and bool(asked) and asked <= set(_stems(term[1]))

    def _section(self, one: Excerpt) -> list[Excerpt]:
        """Return the first passages in the section of `one`, up to the maximum length of an answer."""
        found, letters = list[Excerpt](), 0
        for other in self.passages:
            if (other.page, other.headings) == (one.page, one.headings):
                letters += len(other.text)
                if found and letters > 2 * _LONGEST:
                    break
                found.append(other)
        return found

    def _weight(self, at: int, asked: set[str], *, defines: bool) -> float:
        one = self.passages[at]
        weight = _BACKGROUND.get(one.page, 1.0) * (_LEAD if one.is_lead else 1.0)
        if defines and self._is_term(one, asked):
            weight *= _DEFINED
        elif one.page == "glossary.md" and not defines:
            weight *= _GLOSSARY
        if self._is_headed(one, asked):
            weight *= _HEADED
        if one.kind == "command" and one.text.startswith(("{", "-d", '"')):
            weight *= _PROGRAM
        return weight

    def _asked(self, question: str) -> list[list[tuple[str, float]]]:
        """Return, for each distinctive word, its known stem and the stems of its synonyms, with weights."""
        asked: list[list[tuple[str, float]]] = []
        for word in dict.fromkeys(_words(question)):
            if word in _SAYS_NOTHING:
                continue
            stem, found = _stem(word), list[tuple[str, float]]()
            if stem in self._known:
                found.append((stem, 1.0))
            elif len(word) > 3 and (near := difflib.get_close_matches(word, self._vocabulary, 1, 0.8)):
                stem = _stem(near[0])
                found.append((stem, _CORRECTED))
            alike = _alike().get(_stem(word)) or _alike().get(stem, [])
            found += ((other, _ALIKE) for other in alike if other in self._known)
            asked.append(found)
        return asked

    @cached_property
    def _index(self) -> tuple[list[dict[str, float]], dict[str, list[int]]]:
        """The weighted stem counts of each passage, and the passages that contain each stem."""
        bags: list[dict[str, float]] = []
        postings: dict[str, list[int]] = defaultdict(list)
        for at, one in enumerate(self.passages):
            bag = defaultdict[str, float](float)
            for weight, text in ((1.0, unlinked(one.text)), *((_HEADING, head) for head in one.headings)):
                for stem in _stems(text):
                    bag[stem] += weight
            for stem in _stems(f"{one.title} {one.page[:-3].replace('-', ' ')}"):
                bag[stem] += _TITLE
            for stem in bag:
                postings[stem].append(at)
            bags.append(bag)
        return bags, postings

    @cached_property
    def _lengths(self) -> list[int]:
        return [len(list(_stems(unlinked(one.text)))) for one in self.passages]

    @cached_property
    def _known(self) -> Counter[str]:
        """The number of passages that contain each stem, ignoring file names."""
        return Counter(
            stem
            for one in self.passages
            for stem in {*_stems(" ".join((unlinked(one.text), one.title, *one.headings)))}
        )

    @cached_property
    def _vocabulary(self) -> list[str]:
        words = {
            word for one in self.passages for word in _words(f"{unlinked(one.text)} {' '.join(one.headings)}")
        }
        return sorted(word for word in words if len(word) > 3 and not word.isdigit())

    def _rarity(self, stem: str) -> float:
        n = self._known[stem]
        return math.log(1 + (len(self.passages) - n + 0.5) / (n + 0.5))


def unlinked(text: str) -> str:
    """Return Markdown with each link replaced by its text."""
    return _LINK.sub(r"\1", text)


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _words(text: str) -> list[str]:
    return _WORD.findall(re.sub(r"['’]s ", " ", text.lower()).replace("'", ""))


def _stems(text: str) -> Iterator[str]:
    return (_stem(word) for word in _words(text) if word not in _SAYS_NOTHING)


def _stem(word: str) -> str:
    for ending, rest in _ENDINGS:
        if (
            word.endswith(ending)
            and len(word) - len(ending) >= 3
            and not (ending == "s" and word.endswith("ss"))
        ):
            word = word[: -len(ending)] + rest
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeioulsz":
        word = word[:-1]
    word = word[:-1] if len(word) > 3 and word.endswith("e") else word
    return f"{word[:-1]}y" if len(word) > 3 and word.endswith("i") else word


@cache
def _alike() -> dict[str, list[str]]:
    """Return the stems of the documentation's words, keyed by the stems of the words that newcomers use."""
    stems: dict[str, list[str]] = defaultdict(list)
    for line in _ALIKE_WORDS.strip().splitlines():
        said, _, meant = line.partition(":")
        for word in map(_stem, said.split()):
            stems[word] += (other for other in map(_stem, meant.split()) if other != word)
    return stems


def _passages(page: Path) -> Iterator[Excerpt]:
    headings, fenced, header, led = list[str](), False, False, False
    block, kind = list[str](), ""

    def ended() -> Iterator[Excerpt]:
        nonlocal led
        text = "\n".join(block).strip()
        block.clear()
        if text and headings:
            is_lead, led = kind == "paragraph" and not led, led or kind == "paragraph"
            yield Excerpt(page.name, headings[0], tuple(headings[1:]), kind, text, is_lead)

    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            yield from ended()
            fenced = not fenced
        elif fenced:
            if not (block and line.startswith((" ", "}", "]", "END"))):
                yield from ended()
            kind = "command"
            block.append(line)
        elif heading := re.match(r"(#+) (.*)", line):
            yield from ended()
            headings[len(heading[1]) - 1 :] = [unlinked(heading[2])]
            header = led = False
        elif line.startswith("|"):
            yield from ended()
            if header and not re.fullmatch(r"\|[-| :]+", line):
                kind = "row"
                block.append(line)
                yield from ended()
            header = True
        else:
            header = False
            if not line.strip() or re.match(r"(- |\d+\. )", line):
                yield from ended()
            kind = ("item" if re.match(r"(- |\d+\. )", line) else "paragraph") if not block else kind
            block.append(line)
    yield from ended()
