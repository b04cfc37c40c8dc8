"""Search: query parsing, the SQL for the full-text index (see `migrations`), and snippets.

Every word must match; the last one matches as a prefix. Case and diacritics are ignored. Anything that the
index cannot tokenize (scripts without spaces, symbols as in "C++") is matched literally.
"""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from edgechat.base.text import encodable, one_line
from edgechat.chat.records import Chat, Hit, ToolRound
from edgechat.chat.storage.rows import CHAT, CHAT_OF_C, N_CHAT, attachments_of, chat_of, rounds_of

_LONGEST, _MOST_WORDS = 200, 12
_SNIPPET, _BEFORE = 160, 40
_MOST_PLACES = 200
"""Maximum number of matches to consider per word in one text."""

# Thai, Lao, Burmese, Khmer, Hangul, kana and Han: words can start anywhere.
_WIDE = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
_SIGN = re.compile(r"""[^\w\s\u0300-\u036f"'`‘’“”«».,;:!?¡¿()\[\]{}*…/\\–—-]""")
"""Symbols that are part of words, as in C++ and C#; all other symbols are punctuation."""
_MARKS = "[\u0300-\u036f]*"


class _Folding(dict[int, str]):
    """Maps a character's code to a single case-folded character without diacritics."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        parts = unicodedata.normalize("NFD", letter)
        base = parts[0]
        if _WIDE.match(letter) or not all(map(unicodedata.combining, parts[1:])):
            base = letter
        lower = base.lower()
        folded = self[code] = lower if len(lower) == 1 else letter
        return folded


_FOLDING = _Folding()


def folded(text: str) -> str:
    """Return `text` case-folded and without diacritics; character positions stay the same."""
    return text.lower() if text.isascii() else text.translate(_FOLDING)


@dataclass(frozen=True, slots=True)
class SearchWord:
    """A word of a search query."""

    text: str
    is_last: bool
    is_literal: bool
    """Whether it is matched as a substring instead of as a word."""
    pattern: re.Pattern[str]
    """Matches the word in folded text."""

    @property
    def match(self) -> str | None:
        """An FTS5 query that finds the word, and perhaps other words; None if the index cannot find it."""
        if _WIDE.search(self.text) or not any(map(str.isalnum, self.text)):
            return None
        # FTS5 treats a quoted string as a phrase, without query syntax.
        quoted = self.text.replace('"', " ")
        return f'"{quoted}"{"*" if self.is_last else ""}'

    @property
    def like(self) -> str | None:
        """A LIKE pattern for a literal word, with ~ as the escape character; None for other words."""
        if not self.is_literal:
            return None
        return "%" + re.sub("([%_~])", r"~\1", self.text) + "%"


@dataclass(frozen=True, slots=True)
class Snippet:
    """A line of text around matches."""

    text: str
    marks: tuple[tuple[int, int], ...]
    """Spans of the matches in the line."""
    n_words: int
    """Number of the query's words that occur in the whole text."""


def parse_query(typed: str) -> list[SearchWord]:
    """Split a query into words; there is no query syntax."""
    typed = unicodedata.normalize("NFC", encodable(typed[: 4 * _LONGEST]))
    texts = one_line(typed, _LONGEST).removesuffix("…").split()
    texts = [text for text in texts if any(map(str.isalnum, text)) or _SIGN.search(text)][:_MOST_WORDS]
    return [_word(text, is_last=number == len(texts)) for number, text in enumerate(texts, 1)]


def all_occur(words: list[SearchWord], text: str) -> bool:
    """Return whether all words occur in `text`."""
    text = folded(text)
    return all(word.pattern.search(text) for word in words)


def snippet(text: str, words: list[SearchWord]) -> Snippet:
    """Return the printable line of `text` that contains the most words, or its beginning if none occur."""
    whole = folded(text)
    places = [(start, number) for number, word in enumerate(words) for start in _starts(word, whole)]
    if not places:
        return Snippet(one_line(text[: 2 * _SNIPPET], _SNIPPET), (), 0)
    places.sort()
    first = _densest(places)
    begin = max(0, first - _BEFORE)
    if begin:
        space = re.compile(r"\s+").search(text, begin, first)
        begin = space.end() if space else begin
    line = one_line(text[begin : begin + 2 * _SNIPPET], _SNIPPET)
    line = f"…{line}" if begin else line
    return Snippet(line, marks(line, words), len({number for _, number in places}))


def marks(line: str, words: list[SearchWord]) -> tuple[tuple[int, int], ...]:
    """Return the spans of the words in a line, in order and not overlapping."""
    text = folded(line)
    spans: list[tuple[int, int]] = []
    for start, end in sorted(match.span() for word in words for match in word.pattern.finditer(text)):
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return tuple(spans)


def _word(text: str, *, is_last: bool) -> SearchWord:
    is_literal = bool(_WIDE.search(text) or _SIGN.search(text))
    if is_literal:
        pattern = re.escape(folded(text))
    else:
        bare = re.sub(_MARKS, "", folded(text))
        parts = [_MARKS.join(map(re.escape, part)) for part in re.findall(r"[^\W_]+", bare)]
        end = "" if is_last else r"(?![^\W_])"
        pattern = r"(?<![^\W_])" + r"[\W_]+".join(parts) + _MARKS + end
    return SearchWord(text, is_last, is_literal, re.compile(pattern))


def _starts(word: SearchWord, text: str) -> list[int]:
    matches = word.pattern.finditer(text)
    return [match.start() for match, _ in zip(matches, range(_MOST_PLACES), strict=False)]


def _densest(places: list[tuple[int, int]]) -> int:
    """Return where a snippet should start in order to contain the most words. `places` must be sorted."""
    best = most = end = 0
    inside: Counter[int] = Counter()
    for start, number in places:
        while end < len(places) and places[end][0] < start + _SNIPPET - _BEFORE:
            inside[places[end][1]] += 1
            end += 1
        if len(inside) > most:
            best, most = start, len(inside)
        inside[number] -= 1
        if not inside[number]:
            del inside[number]
    return best


_RANKED = 2000
"""Maximum number of matching turns to rank, newest first; ranking one takes a microsecond."""
_MOST_TITLES = 10
_TEXTS = ("t.content", "t.attachments", "t.rounds")
_IN_TURN = "(" + " OR ".join(f"{text} LIKE ? ESCAPE '~'" for text in _TEXTS) + ")"


def search(db: sqlite3.Connection, text: str, limit: int = 50, chat_id: str | None = None) -> list[Hit]:
    """Return the places where every word in `text` occurs (see `parse_query`), in one chat or in all of them.

    Chats with matching titles come first, then turns ranked by BM25; ties are sorted newest first.
    """
    words = parse_query(text)
    if not words or limit < 1:
        return []
    hits = [_hit(row, words) for row in _turns(db, words, limit, chat_id)]
    if chat_id is not None:
        return hits
    best = {hit.chat.id: hit for hit in reversed(hits)}
    first = [best.get(chat.id) or _title_hit(chat, words) for chat in _titled(db, words)]
    return [*first, *(hit for hit in hits if hit not in first)][:limit]


def _turns(
    db: sqlite3.Connection, words: list[SearchWord], limit: int, chat_id: str | None
) -> Iterator[tuple[Any, ...]]:
    match = " AND ".join(filter(None, (word.match for word in words)))
    wheres, values = ["c.trashed_at IS NULL"], list[Any]()
    for like in filter(None, (word.like for word in words)):
        wheres.append(_IN_TURN)
        values += [like] * len(_TEXTS)
    if chat_id is not None:
        wheres.append("t.conversation_id = ?")
        values.append(chat_id)
    where, chat = " AND ".join(wheres), "conversations c ON c.id = t.conversation_id"
    if match:
        between, bounds = _bounds(db, chat_id)
        matches = (
            "SELECT t.number AS number, bm25(said, 1.0, 0.5) AS score FROM said "
            f"CROSS JOIN turns t ON t.number = said.rowid CROSS JOIN {chat} "
            f"WHERE said MATCH ? {between} AND {where} ORDER BY said.rowid DESC LIMIT {_RANKED}"
        )
        values = [match, *bounds, *values]
    else:
        matches = (
            f"SELECT t.number AS number, 0 AS score FROM turns t CROSS JOIN {chat} "
            f"WHERE t.number IS NOT NULL AND {where} ORDER BY t.number DESC LIMIT {int(limit)}"
        )
    return db.execute(
        f"SELECT {CHAT_OF_C}, t.id, t.role, t.created_at, {', '.join(_TEXTS)} FROM ({matches}) f "
        f"JOIN turns t ON t.number = f.number JOIN {chat} "
        f"ORDER BY f.score, f.number DESC LIMIT {int(limit)}",
        values,
    )


def _bounds(db: sqlite3.Connection, chat_id: str | None) -> tuple[str, list[Any]]:
    # The index identifies turns only by number. A chat's numbers lie within these bounds, mixed with the
    # numbers of other chats.
    if chat_id is None:
        return "", []
    span = "SELECT min(number), max(number) FROM turns WHERE conversation_id = ?"
    return "AND said.rowid BETWEEN ? AND ?", list(db.execute(span, (chat_id,)).fetchone())


def _hit(row: tuple[Any, ...], words: list[SearchWord]) -> Hit:
    turn_id, role, created_at, content, attached, rounds = row[N_CHAT:]
    best = snippet(content, words)
    if best.n_words < len(words):
        files = [f"{file.name}: {file.text}" for file in attachments_of(attached)]
        snippets = (snippet(text, words) for text in (*files, *_texts_of(rounds_of(rounds))))
        best = max(best, *snippets, key=lambda candidate: candidate.n_words)
    chat = chat_of(row[:N_CHAT])
    return Hit(
        chat=chat, turn_id=turn_id, role=role, created_at=created_at, snippet=best.text, marks=best.marks
    )


def _texts_of(rounds: Iterable[ToolRound]) -> Iterator[str]:
    for part in rounds:
        yield part.content
        for use in part.uses:
            yield f"{use.tool} {use.arguments}: {use.result}"


def _titled(db: sqlite3.Connection, words: list[SearchWord]) -> list[Chat]:
    """Return the chats whose titles contain all words, most recently used first."""
    kept = "FROM conversations WHERE trashed_at IS NULL"
    titles = db.execute(f"SELECT id, title {kept} ORDER BY updated_at DESC")
    ids = [chat_id for chat_id, title in titles if all_occur(words, title)][:_MOST_TITLES]
    places = ", ".join("?" * len(ids))
    rows = db.execute(f"SELECT {CHAT} {kept} AND id IN ({places}) ORDER BY updated_at DESC", ids)
    return [chat_of(row) for row in rows]


def _title_hit(chat: Chat, words: list[SearchWord]) -> Hit:
    line = one_line(chat.title)
    spans = marks(line, words)
    return Hit(chat=chat, turn_id="", role="user", created_at=chat.updated_at, snippet=line, marks=spans)
