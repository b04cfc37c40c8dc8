"""Splits the text of a document into passages: parts of a section, short enough for a model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MOST_LETTERS = 1200
"""Maximum number of characters in a passage (about 300 tokens)."""
_LEAST_LETTERS = 200
"""Sections with fewer characters are joined with the next one."""
_HEADING = re.compile(r"(#{1,6})[ \t]+(\S.*)")
_FENCE = re.compile(r"[ ]{0,3}(```+|~~~+)")
_DEFINITION = re.compile(
    r"(?:async\s+)?(?:def|class|fn|func|function|struct|enum|impl|interface|trait|module|namespace|type)\b"
    r"|(?:pub|public|private|static|export|abstract|final)\s"
)
_BREAK = re.compile(r"(?<=[.!?;:。！？])\s+|\n|\s+")
_HEADING_LETTERS = 120


@dataclass(slots=True)
class Passage:
    """Consecutive lines of a document."""

    start: int
    """Number of its first line, counting from 1."""
    end: int
    """Number of its last line."""
    section: int
    """Number of its section in the document, counting from 0."""
    heading: str
    """Heading of its section, after the headings of any enclosing sections: 'Install > Linux'; '' if none."""
    text: str


@dataclass(slots=True)
class _Section:
    heading: str = ""
    start: int = 1
    lines: list[str] = field(default_factory=list)

    @property
    def letters(self) -> int:
        return sum(map(len, self.lines)) + len(self.lines)


def passages_of(text: str, *, is_code: bool = False) -> Iterator[Passage]:
    """Yield the passages of a document in order, except blank ones.

    A passage ends where its section ends or, if the section is too long, at a blank line, or else at the end
    of a line or sentence. is_code: sections start with definitions instead of headings.
    """
    for number, section in enumerate(_joined(_sections(text.split("\n"), is_code=is_code))):
        for start, end, part in _parts(section):
            yield Passage(start, end, number, section.heading, part)


def _sections(lines: list[str], *, is_code: bool) -> Iterator[_Section]:
    section, above, fence = _Section(), list[tuple[int, str]](), ""
    for number, line in enumerate(lines, 1):
        is_start, heading = False, section.heading
        if is_code:
            is_start = bool(line) and _DEFINITION.match(line) is not None
            heading = ""
        elif found := _FENCE.match(line):
            if not fence:
                fence = found[1]
            elif found[1].startswith(fence):
                fence = ""
        elif not fence and (found := _HEADING.fullmatch(line)):
            depth = len(found[1])
            above = [(level, title) for level, title in above if level < depth]
            above.append((depth, " ".join(found[2].strip("# \t").split())[:_HEADING_LETTERS]))
            is_start, heading = True, " > ".join(title for _, title in above)
        if is_start and section.lines:
            yield section
            section = _Section(start=number)
        if is_start:
            section.heading = heading
        section.lines.append(line)
    yield section


def _joined(sections: Iterator[_Section]) -> Iterator[_Section]:
    """Join short sections with the next one, whose heading then becomes part of the text."""
    last: _Section | None = None
    for section in sections:
        if last is not None and last.letters < _LEAST_LETTERS:
            last.lines += section.lines
        else:
            if last is not None:
                yield last
            last = section
    if last is not None:
        yield last


def _parts(section: _Section) -> Iterator[tuple[int, int, str]]:
    """Yield the passages of a section as (first line, last line, text)."""
    if section.letters <= MOST_LETTERS:
        yield from _trimmed(section.start, section.lines)
        return
    kept, start, letters, blank = list[str](), section.start, 0, 0
    for number, line in enumerate(section.lines, section.start):
        if letters + len(line) > MOST_LETTERS and kept:
            # Go back to the last blank line, unless that makes the passage too short.
            n = blank if sum(map(len, kept[:blank])) > MOST_LETTERS // 3 else len(kept)
            yield from _trimmed(start, kept[:n])
            kept, start = kept[n:], start + n
            letters, blank = sum(map(len, kept)) + len(kept), 0
        if len(line) > MOST_LETTERS:
            yield from _trimmed(start, kept)
            for piece in _cut(line):
                yield number, number, piece
            kept, start, letters, blank = [], number + 1, 0, 0
            continue
        kept.append(line)
        letters += len(line) + 1
        if not line.strip():
            blank = len(kept)
    yield from _trimmed(start, kept)


def _trimmed(start: int, lines: list[str]) -> Iterator[tuple[int, int, str]]:
    """Yield lines as a single passage, without surrounding blank lines; yield nothing if all are blank."""
    first = next((n for n, line in enumerate(lines) if line.strip()), None)
    if first is not None:
        last = next(n for n in range(len(lines) - 1, -1, -1) if lines[n].strip())
        yield start + first, start + last, "\n".join(lines[first : last + 1])


def _cut(line: str) -> Iterator[str]:
    """Yield a long line in pieces, split after sentences or between words."""
    start = 0
    while len(line) - start > MOST_LETTERS:
        window = line[start : start + MOST_LETTERS]
        ends = [found.end() for found in _BREAK.finditer(window, MOST_LETTERS // 2)]
        sentences = [end for end in ends if window[:end].rstrip()[-1:] in ".!?;:。！？"]
        end = (sentences or ends or [MOST_LETTERS])[-1]
        if piece := window[:end].strip():
            yield piece
        start += end
    if piece := line[start:].strip():
        yield piece
