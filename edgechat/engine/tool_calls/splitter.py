"""Splitter: splits an answer into text and tool calls as the answer grows."""

from __future__ import annotations

import re
import secrets
import string
from dataclasses import dataclass
from enum import Enum
from io import StringIO

from edgechat.engine.tool_calls.formats import BARE, FENCED, TAGGED, Format
from edgechat.engine.tool_calls.scan import EndScan, JsonScan, Kinds, held_back
from edgechat.engine.types import ToolCall

LONGEST_CALL = 2**20
"""Maximum length of a call, in characters. Anything longer is treated as text."""
_LONGEST_HEADER = 512
_LONGEST_HEAD = 1024  # if arguments start later than this in a body, they are not streamed
_LONGEST_PLAUSIBLE = 512  # if arguments start later than this, a call without marks is text
_SPACE = " \t\r\n"
_FENCE = re.compile(r"(?:\A|(?<=\n))[ \t]{0,3}```\w{0,16}[ \t]*\n")
_BARE = re.compile(r"\s*(?:\[\s*)?(\{)?")
_FENCE_BEGINS = re.compile(r"(?:\A|(?<=\n))[ \t]{0,3}(?:`{1,2}|```\w{0,16}[ \t]{0,16})\Z")
_MOST_SPACE = 64  # characters of whitespace to hold back because they may belong to a call


class Ending(Enum):
    """The end of a message or of the whole reply."""

    MESSAGE = "message"
    REPLY = "reply"


@dataclass(frozen=True, slots=True)
class ArgumentsText:
    """More of the last call's arguments."""

    text: str


Item = str | ToolCall | ArgumentsText | Ending
"""Text, a call without its arguments, more arguments, or the end of a message or reply, which comes last."""


class Splitter:
    """Extracts calls from a reply's text.

    Text that may be the start of a mark is held back until it is clear whether it is one. If something turns
    out not to be a call, all of it becomes text again, and is not searched for other calls. A call is
    announced when its arguments start, and cannot become text again after that.
    """

    def __init__(
        self,
        family: Format,
        kinds: Kinds,
        *,
        forced: bool = False,
        marked: bool = False,
        most: int | None = None,
    ) -> None:
        """kinds: the available tools, with the JSON types of their parameters.

        forced: whether the answer consists of calls only, so that the rest of a cut-off call is not text.
        marked: whether a grammar ensures that calls have marks. most: the number of calls after which the
        reply ends.
        """
        self._family = family
        self._format = family
        """The format of the current call."""
        self._needs_marks = marked or forced
        self._heads = [
            f'{{"name":"{name}","{key}":{{' for name in kinds for key in ("arguments", "parameters")
        ]
        """How calls without marks start, with all whitespace removed."""
        self._kinds = kinds
        self._forced = forced
        self._most = most
        self._buffer = ""
        self._at_start = True
        """Whether this message contains no text so far."""
        self._at_line = True
        """Whether the next text is at the start of a line."""
        self._in_fence = False
        """Whether the next text is in a fenced code block that is not a call."""
        self._raw: StringIO | None = None
        """The current call's text, including its mark; empty once it is announced. None outside calls."""
        self._step = self._in_gap
        """The method that handles the next part of the call."""
        self._length = 0
        self._header: list[str] = []
        self._body: list[str] = []
        self._scan: JsonScan | EndScan = JsonScan()
        self._announced = False
        self._arguments: JsonScan | None = None
        """Searches for the end of the current call's arguments. None once it has been found."""
        self._ids: set[str] = set()

    @property
    def skip(self) -> tuple[str, ...]:
        """Marks that may precede an answer."""
        return self._family.skip

    @property
    def inside(self) -> bool:
        """Whether the next text belongs to a call, or to text that may turn out to be one."""
        return self._raw is not None

    @property
    def n_calls(self) -> int:
        """Number of calls so far."""
        return len(self._ids)

    @property
    def n_held(self) -> int:
        """How many of the held-back characters may turn out to be text."""
        return len(self._buffer) + (0 if self._raw is None else self._raw.tell())

    def feed(self, text: str) -> list[Item]:
        """Add text and return the items that are now certain."""
        self._buffer += text
        return self._drain(final=False)

    def finish(self, *, cut: bool = False) -> list[Item]:
        """End the reply and return what was held back.

        cut: whether a limit ended the reply. If so, an incomplete call is not returned as text, unless it has
        no mark and may be JSON that was requested.
        """
        items = self._drain(final=True)
        if self._raw is not None and self._step == self._in_body and not self._announced:
            items += self._announce()
        # After a call, only the start of its closing mark is held back.
        behind = self._raw is not None and (self._step == self._after_call or self._announced)
        is_cut = cut and self._raw is not None and (bool(self._ids) or not self._format.unmarked)
        rest = "" if behind or is_cut else self._left() + self._buffer
        self._raw, self._buffer = None, ""
        items += [rest] if rest else []
        if self._forced:
            return [item for item in items if not isinstance(item, str)]
        return [
            item for item in items if not (self._ids and isinstance(item, str) and not item.strip(_SPACE))
        ]

    def rest(self) -> str:
        """Return the text after the end of a message, and start the next message."""
        rest, self._buffer, self._at_start = self._buffer, "", True
        return rest

    def _drain(self, *, final: bool) -> list[Item]:
        items: list[Item] = []
        while self._buffer:
            before = (len(self._buffer), self._raw is None, self._step)
            items += self._outside(final=final) if self._raw is None else self._step()
            is_unchanged = before == (len(self._buffer), self._raw is None, self._step)
            if is_unchanged or (items and isinstance(items[-1], Ending)):
                break
        return items

    # Outside calls.

    def _outside(self, *, final: bool) -> list[Item]:
        family = self._family
        if self._at_start:
            begun = self._buffer.lstrip(_SPACE)
            mark = next((start for start in family.first if begun.startswith(start)), "")
            if mark:
                space, self._buffer = self._buffer[: len(self._buffer) - len(begun)], begun
                self._enter_call(space, family)
                return []
            is_short = len(self._buffer) <= _MOST_SPACE
            if is_short and not final and any(start.startswith(begun) for start in family.first):
                return []
        endings = dict.fromkeys(family.ends, Ending.REPLY) | {family.message_end: Ending.MESSAGE}
        opens = dict.fromkeys(family.opens, family) | ({} if self._needs_marks else TAGGED)
        marks = tuple(mark for mark in (*opens, *endings) if mark)
        places = ((self._buffer.find(mark), mark) for mark in marks if mark in self._buffer)
        at, mark = min(places, default=(-1, ""))
        if (unmarked := self._find_unmarked(at, final=final)) is not None:
            return unmarked
        if at < 0:
            return self._take_text(len(self._buffer) - (0 if final else self._undecided(marks)))
        if mark not in endings:
            return self._begin_call(at, at + len(mark), opens[mark])
        before, self._buffer = self._buffer[:at], self._buffer[at + len(mark) :]
        return [before, endings[mark]] if before else [endings[mark]]

    def _find_unmarked(self, before: int, *, final: bool) -> list[Item] | None:
        """Start a possible call without marks if one begins before index `before`; -1 means anywhere."""
        if self._needs_marks:
            return None
        if self._at_start and (bare := _BARE.match(self._buffer)) is not None:
            if bare[1]:
                return self._begin_call(0, bare.start(1), BARE)
            if bare.end() == len(self._buffer) <= _MOST_SPACE and not final:
                return []
        fence = _FENCE.search(self._buffer, 0 if self._at_line else 1)
        if fence is None or 0 <= before < fence.start():
            return None
        if not self._in_fence:
            return self._begin_call(fence.start(), fence.end(), FENCED)
        self._in_fence = False
        return self._take_text(fence.end() - 1)

    def _begin_call(self, at: int, end: int, call_format: Format) -> list[Item]:
        """Start a call whose mark is at buffer[at:end], and return the text before it."""
        text = self._buffer[:at].rstrip(_SPACE)
        raw, self._buffer = self._buffer[len(text) : end], self._buffer[end:]
        self._enter_call(raw, call_format)
        return [text] if text else []

    def _undecided(self, marks: tuple[str, ...]) -> int:
        """Return how many characters at the end may belong to a mark, or to whitespace before one."""
        held = held_back(self._buffer, marks)
        fence = None if self._needs_marks else _FENCE_BEGINS.search(self._buffer, 0 if self._at_line else 1)
        held = max(held, len(self._buffer) - fence.start() if fence is not None else 0)
        before = self._buffer[: len(self._buffer) - held]
        space = len(before) - len(before.rstrip(_SPACE))
        return held + space if space <= _MOST_SPACE else held

    def _take_text(self, count: int) -> list[Item]:
        text, self._buffer = self._buffer[:count], self._buffer[count:]
        if text.strip(_SPACE):
            self._at_start = False
        self._at_line = text.endswith("\n") if text else self._at_line
        return [text] if text else []

    # Inside calls.

    def _enter_call(self, raw: str, call_format: Format) -> None:
        """Start a call. raw: its mark and the whitespace before it."""
        self._format, self._at_start = call_format, False
        self._raw = StringIO()
        self._raw.write(raw)
        self._header, self._body, self._length = [], [], 0
        self._step = self._in_header if call_format.header_end else self._in_gap
        self._scan = EndScan(call_format.body_end) if call_format.body_end else JsonScan()
        self._announced, self._arguments = False, None

    def _in_header(self) -> list[Item]:
        end = self._format.header_end
        at = self._buffer.find(end)
        if at >= 0:
            self._header = [self._take(at)]
            self._take(len(end))
            self._step = self._in_gap
        elif len(self._buffer) > _LONGEST_HEADER:
            return self._reject_call()
        return []

    def _in_gap(self) -> list[Item]:
        self._skip()
        if not self._buffer:
            return []
        if not (self._format.body_end or self._buffer.startswith("{")):
            return self._reject_call()
        self._step = self._in_body
        return []

    def _in_body(self) -> list[Item]:
        try:
            end = self._scan.feed(self._buffer)
        except ValueError:
            return self._extend_body(self._take(self._scan.n_valid)) + self._reject_call()
        items = self._extend_body(self._take(len(self._buffer) if end is None else end))
        if self._raw is None:
            return items
        if self._length > LONGEST_CALL:
            return items + self._reject_call()
        return items if end is None else items + self._finish_call()

    def _extend_body(self, piece: str) -> list[Item]:
        """Add a piece to the body and return the items that are now certain."""
        self._body.append(piece)
        self._length += len(piece)
        if self._announced:
            return self._arguments_text(piece)
        if self._format.unmarked:
            return self._check_unmarked()
        is_head = self._format.streams and self._length - len(piece) <= _LONGEST_HEAD
        return self._announce() if is_head else []

    def _check_unmarked(self) -> list[Item]:
        """Announce a call without marks, or reject it as soon as it is clear that it is not a call."""
        begun = re.sub(r"\s", "", "".join(self._body))
        begun = begun.removeprefix("{") if begun.startswith("{{") else begun
        is_one = any(begun.startswith(head[: len(begun)]) for head in self._heads)
        items = self._announce() if is_one else []
        return items if items or (is_one and self._length <= _LONGEST_PLAUSIBLE) else self._reject_call()

    def _announce(self) -> list[Item]:
        """Return the current call and its arguments so far, or [] if the arguments have not started."""
        head = self._format.head("".join(self._header), "".join(self._body), self._kinds)
        if head is None or head.name not in self._kinds:
            return []
        self._announced, self._arguments = True, JsonScan()
        self._raw = StringIO()  # the call can no longer become text
        return [self._call(head.name, head.id), *self._arguments_text(head.arguments)]

    def _call(self, name: str, model_id: str) -> ToolCall:
        call_id = model_id if model_id and model_id not in self._ids else new_id(self._family)
        self._ids.add(call_id)
        return ToolCall(call_id, name, "")

    def _arguments_text(self, text: str) -> list[Item]:
        """Return the part of a piece of the body that belongs to the arguments."""
        end = self._arguments.feed(text) if self._arguments is not None else 0
        if end is not None:
            self._arguments, text = None, text[:end]
        return [ArgumentsText(text)] if text else []

    def _finish_call(self) -> list[Item]:
        items: list[Item] = []
        if not self._announced:
            call = self._format.read("".join(self._header), "".join(self._body), self._kinds)
            if call is None or call.name not in self._kinds:
                return self._reject_call()
            items = [self._call(call.name, call.id), ArgumentsText(call.arguments)]
        return items + self._end_call()

    def _end_call(self) -> list[Item]:
        self._raw, self._step = StringIO(), self._after_call
        return [] if self._most is None or len(self._ids) < self._most else [Ending.REPLY]

    def _after_call(self) -> list[Item]:
        """Handle the text after a call: another call, or the closing mark if there is one."""
        self._skip()
        close = self._format.close
        if not self._buffer or (close != self._buffer and close.startswith(self._buffer)):
            return []
        if close and self._buffer.startswith(close):
            self._take(len(close))
        elif self._format.several and self._buffer.startswith("{"):
            self._enter_call("", self._format)
            return []
        else:
            self._in_fence = self._format is FENCED
        self._raw, self._at_line = None, True
        return []

    def _skip(self) -> None:
        self._take(len(self._buffer) - len(self._buffer.lstrip(self._format.between)))

    def _take(self, count: int) -> str:
        text, self._buffer = self._buffer[:count], self._buffer[count:]
        if self._raw is not None and self._step != self._after_call and not self._announced:
            self._raw.write(text)
        return text

    def _left(self) -> str:
        """Return the text of a call that was not announced."""
        return "" if self._raw is None else self._raw.getvalue()

    def _reject_call(self) -> list[Item]:
        """Return what looked like a call as text, or end the call if it was already announced."""
        if self._announced:
            return self._end_call()
        text, self._raw = self._left(), None
        self._in_fence, self._at_line = self._format is FENCED, text.endswith("\n")
        return [text] if text else []


def new_id(family: Format) -> str:
    """Return a new id for a call, in the form that the family's templates expect."""
    if family.short_ids:
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
    return "call_" + "".join(secrets.choice(string.ascii_letters) for _ in range(24))
