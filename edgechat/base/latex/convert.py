"""LaTeX formulas as Unicode text: inline, or displayed on several lines.

A formula is either converted as a whole or left as the model wrote it. Existing libraries drop unknown
commands (pylatexenc), leave a mixture of LaTeX and Unicode (unicodeit), or lack matrices and any protection
against hostile input (flatlatex).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from edgechat.base.latex import symbols
from edgechat.base.latex.parts import (
    FACTOR,
    PRODUCT,
    SPECIAL_SUPERSCRIPTS,
    Box,
    Part,
    TooLarge,
    beside,
    fenced,
    framed,
    grid,
    joined,
    operand,
    script,
    stacked,
    with_limits,
)

_LONGEST = 2000
"""Maximum length of a formula that is converted, in characters."""


@lru_cache(maxsize=1024)
def in_line(formula: str) -> str | None:
    """Return a formula as one line of Unicode, or None if it cannot be converted."""
    box = _converted(formula, tall=False)
    return box.lines[0].strip() if box is not None else None


@lru_cache(maxsize=256)
def displayed(formula: str) -> tuple[str, ...] | None:
    """Return a formula as lines of Unicode with stacked fractions, or None if it cannot be converted."""
    box = _converted(formula, tall=True)
    return tuple(line.rstrip() for line in box.lines) if box is not None else None


def _converted(formula: str, *, tall: bool) -> Box | None:
    if len(formula) > _LONGEST:
        return None
    try:
        box = Reader(formula.strip(), tall=tall).whole()
    except (Unconvertible, TooLarge):
        return None
    return box if any(line.strip() for line in box.lines) else None


_DEEPEST = 24
_TOKEN = re.compile(r"\\\\(?:[ \t]*\[-?[\d.]+[a-z]{2}\])?|\\[A-Za-z]+|\\.|\s+|.", re.DOTALL)
_BREAK = "\\\\"
_SPACE = Part(Box((" ",)))
_SCRIPT_SIGNS = ("^", "_", "'")


class Unconvertible(ValueError):
    """A formula contains something that is not supported."""


class Reader:
    """Recursive-descent parser for a formula. tall: whether the result may span several lines."""

    def __init__(self, formula: str, *, tall: bool) -> None:
        self._tokens: list[str] = _TOKEN.findall(formula)
        self._at = 0
        self._depth = 0
        self._tall = tall

    def whole(self) -> Box:
        """Read the whole formula. Raises Unconvertible or TooLarge."""
        box = self._lines(())
        if self._peek():
            raise Unconvertible
        return box

    # Tokens.

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _skip_space(self) -> str:
        """Skip white space, and return what follows it."""
        while self._peek().isspace():
            self._at += 1
        return self._peek()

    def _script_sign(self) -> str:
        """Return '^', '_' or "'" if it comes next, skipping white space before it; otherwise return ''."""
        at = self._at
        if (token := self._skip_space()) in _SCRIPT_SIGNS:
            return token
        self._at = at
        return ""

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise Unconvertible

    def _raw(self) -> str:
        """Read a group of plain text."""
        if self._skip_space() != "{":
            raise Unconvertible
        self._at += 1
        text: list[str] = []
        while (token := self._next()) != "}":
            if token in ("", "{", "$") or (token[0] == "\\" and token[1:] not in symbols.ORDINARY):
                raise Unconvertible
            text.append(symbols.ORDINARY[token[1:]] if token[0] == "\\" else token)
        return re.sub(r"\s+", " ", "".join(text))

    # Rows of parts.

    def _lines(self, ends: Sequence[str]) -> Box:
        """Read lines whose parts are aligned at each &."""
        rows = self._rows(ends)
        if not self._tall:
            return Box((self._join_lines(rows),))
        if len(rows) == 1:
            return beside(rows[0])
        return grid(rows, "><" if max(map(len, rows)) > 1 else "<", 0)

    def _join_lines(self, rows: list[list[Box]]) -> str:
        return "; ".join("".join(cell.lines[0] for cell in row).strip() for row in rows)

    def _rows(self, ends: Sequence[str]) -> list[list[Box]]:
        rows: list[list[Box]] = [[]]
        while True:
            rows[-1].append(self._row((*ends, "&", _BREAK)).box)
            token = self._peek()
            if token == "&":
                self._at += 1
            elif token.startswith(_BREAK):
                self._at += 1
                self._skip_space()
                rows.append([])
            else:
                break
        if len(rows) > 1 and not any(line.strip() for box in rows[-1] for line in box.lines):
            rows.pop()
        return rows

    def _row(self, ends: Sequence[str]) -> Part:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise Unconvertible
        parts: list[Part] = []
        while (token := self._peek()) and token not in ends and not (token[:2] == _BREAK and _BREAK in ends):
            if self._script_sign():
                base = parts.pop() if parts else Part(Box(("",)))
                parts.append(self._with_scripts(base))
            elif token.isspace():
                self._at += 1
                if parts:
                    parts.append(_SPACE)
            else:
                parts.append(self._atom())
        self._depth -= 1
        if ends == ("\\right",):
            parts = parts[:-1] if parts[-1:] == [_SPACE] else parts
        return joined(parts)

    def _flat(self) -> Part:
        """Read an argument that must fit on one line."""
        tall, self._tall = self._tall, False
        part = self._argument()
        self._tall = tall
        return part

    def _argument(self) -> Part:
        return self._atom() if self._skip_space() else _fail()

    def _text(self) -> str:
        return self._flat().text.strip()

    def _atom(self) -> Part:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise Unconvertible
        token = self._next()
        if token == "{":
            inside = self._row(("}",))
            self._expect("}")
            part = Part(inside.box, inside.kind or ("group" if inside.box.width > 1 else ""))
        elif token in ("}", "&", "$", "^", "_", "") or token[:2] == _BREAK:
            raise Unconvertible
        elif token[0] == "\\":
            part = self._command(token[1:])
        else:
            part = Part(Box((" " if token == "~" or token.isspace() else token,)))
        self._depth -= 1
        return part

    # Commands.

    def _command(self, name: str) -> Part:
        if name.isalpha() and name not in ("left", "right"):
            self._skip_space()
        if name in symbols.ORDINARY:
            return Part(Box((symbols.ORDINARY[name],)))
        if name in symbols.OPERATORS:
            return Part(Box((f" {symbols.OPERATORS[name]} ",)))
        if name in symbols.FUNCTIONS:
            return Part(Box((name,)), "word")
        if name in symbols.LIMITS:
            return Part(Box((symbols.LIMITS[name],)), "large" if self._tall else "word")
        if name in symbols.LARGE:
            return Part(Box((symbols.LARGE[name],)), "large" if self._tall else "tail")
        if name in symbols.INTEGRALS:
            return Part(Box((symbols.INTEGRALS[name],)), "tail")
        return self._with_arguments(name)

    def _with_arguments(self, name: str) -> Part:
        if name in symbols.TEXTS:
            if self._peek() == "*":
                self._at += 1
            return Part(Box((self._raw(),)), "word" if name == "operatorname" else "")
        if name in symbols.UPRIGHT:
            return self._argument()
        if name in symbols.ACCENTS:
            return self._accented(name)
        match name:
            case "frac" | "dfrac" | "tfrac" | "cfrac":
                return self._fraction()
            case "sqrt":
                return self._root()
            case "binom" | "dbinom" | "tbinom":
                return self._binomial()
            case "left":
                return self._between_delimiters()
            case "begin":
                return self._environment(self._raw())
            case "not":
                text = self._text()
                return Part(Box((f" {unicodedata.normalize('NFC', text[:1] + chr(0x338))}{text[1:]} ",)))
            case "pmod":
                return Part(Box((f" (mod {self._text()})",)))
            case "tag":
                return Part(Box((f"   ({self._raw()})",)))
            case "label":
                self._raw()
                return Part(Box(("",)))
            case "textcolor":
                self._raw()
                return self._argument()
            case "boxed" | "fbox":
                part = self._argument()
                return Part(framed(part.box) if self._tall else Box((f"[{part.text.strip()}]",)))
            case "underbrace" | "overbrace" if self._tall:
                return self._braced(below=name == "underbrace")
            case "overset" | "stackrel" | "underset":
                return self._set_over(below=name == "underset")
            case "xrightarrow":
                return Part(Box((f" ─{self._text()}→ ",)))
            case "substack":
                self._skip_space()
                self._expect("{")
                rows = self._rows(("}",))
                self._expect("}")
                return Part(Box((self._join_lines(rows).replace("; ", ", "),)), "group")
        return self._in_alphabet(name)

    def _in_alphabet(self, name: str) -> Part:
        if symbols.in_alphabet(name, "") is None:
            raise Unconvertible
        part = self._flat()
        return Part(Box((symbols.in_alphabet(name, part.text) or part.text,)), part.kind)

    def _accented(self, name: str) -> Part:
        text, mark = self._text(), symbols.ACCENTS[name]
        if not text or (len(text) > 1 and name not in symbols.LONG_ACCENTS):
            raise Unconvertible
        marked = "".join(unicodedata.normalize("NFC", char + mark) for char in text)
        return Part(Box((marked,)), "group" if len(text) > 1 else "")

    def _fraction(self) -> Part:
        above, below = self._text(), self._text()
        if (simple := symbols.SIMPLE_FRACTIONS.get(f"{above}/{below}")) is not None:
            return Part(Box((simple,)), "tail")
        if not self._tall:
            return Part(Box((f"{operand(above, PRODUCT)}/{operand(below, FACTOR)}",)), "word")
        boxes = [Box((above,)), Box((below,))]
        rule = Box(("─" * (max(box.width for box in boxes) + 2),))
        return Part(stacked([boxes[0], rule, boxes[1]], 1))

    def _root(self) -> Part:
        sign = "√"
        if self._skip_space() == "[":
            self._at += 1
            degree = self._row(("]",)).text.strip()
            self._expect("]")
            small = symbols.scripted(degree, symbols.SUPERSCRIPTS)
            sign = symbols.ROOTS.get(degree) or (f"{small}√" if small else f"[{degree}]√")
        return Part(Box((sign + operand(self._text(), FACTOR),)), "tail")

    def _binomial(self) -> Part:
        above, below = self._text(), self._text()
        if not self._tall:
            return Part(Box((f"({above} choose {below})",)))
        return Part(fenced("(", grid([[Box((above,))], [Box((below,))]], "^", 0), ")"))

    def _braced(self, *, below: bool) -> Part:
        inside = self._argument().box
        left, right = ("╰", "╯") if below else ("╭", "╮")
        brace = Box.of([left + "─" * (inside.width - 2) + right])
        return Part(stacked([inside, brace], 0) if below else stacked([brace, inside], 1), "large")

    def _set_over(self, *, below: bool) -> Part:
        small, base = self._text(), self._argument()
        if self._tall:
            boxes = [base.box, Box((small,))] if below else [Box((small,)), base.box]
            return Part(stacked(boxes, 0 if below else 1))
        table, sign = (symbols.SUBSCRIPTS, "_") if below else (symbols.SUPERSCRIPTS, "^")
        return Part(Box((base.text.strip() + script(small, table, sign),)), "word")

    def _between_delimiters(self) -> Part:
        left = self._delimiter()
        inside = self._row(("\\right",))
        self._expect("\\right")
        return Part(fenced(left, inside.box, self._delimiter()))

    def _delimiter(self) -> str:
        self._skip_space()
        token = self._next()
        if token[:1] == "\\":
            if (sign := symbols.ORDINARY.get(token[1:], symbols.OPERATORS.get(token[1:]))) is None:
                raise Unconvertible
            return sign
        if token not in tuple("()[]|/.<>"):
            raise Unconvertible
        return {".": "", "<": "⟨", ">": "⟩"}.get(token, token)

    def _environment(self, name: str) -> Part:
        kind = name.removesuffix("*")
        if kind not in symbols.FENCES and kind not in symbols.LINES:
            raise Unconvertible
        if kind in ("array", "alignat", "alignedat"):
            self._raw()
        if kind in symbols.LINES:
            box = self._lines(("\\end",))
        else:
            tall, self._tall = self._tall, False
            rows = [[Box.of([cell.lines[0].strip()]) for cell in row] for row in self._rows(("\\end",))]
            self._tall = tall
            left, right = symbols.FENCES[kind]
            if self._tall:
                cases = kind in ("cases", "dcases", "rcases")
                box = fenced(left, grid(rows, "<" if cases else "^", 2), right)
            else:
                cells = "; ".join(" ".join(cell.lines[0] for cell in row) for row in rows)
                box = Box((f"{left}{cells}{right}",))
        self._expect("\\end")
        if self._raw() != name:
            raise Unconvertible
        return Part(box)

    # Scripts.

    def _with_scripts(self, base: Part) -> Part:
        above, below = "", ""
        while token := self._script_sign():
            self._at += 1
            if token == "_" and not below:
                below = self._text()
            elif token == "'":
                above += "′"
            elif token == "^" and not above.strip("′"):
                above += self._text()
            else:
                raise Unconvertible
        above = above.replace("′′′", "‴").replace("′′", "″")
        if base.kind == "large":
            return with_limits(base.box, above, below)
        under = script(below, symbols.SUBSCRIPTS, "_")
        over = SPECIAL_SUPERSCRIPTS.get(above) or script(above, symbols.SUPERSCRIPTS, "^")
        plain = "^" in over or "_" in under
        if base.box.height > 1:
            corner = Box.of([over, *[""] * (base.box.height - 2), under], base.box.base)
            return Part(beside([base.box, corner]), "word")
        text = base.text
        if base.kind == "group" or (base.kind in ("word", "tail") and "/" in text):
            text = operand(text, FACTOR)
        stays = base.kind if base.kind in ("word", "tail") else ""
        return Part(Box((text.rstrip() + under + over,)), "word" if plain else stays)


def _fail() -> Part:
    raise Unconvertible
