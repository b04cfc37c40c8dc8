"""Start page of a new conversation: the wordmark, a card about the model, and suggested questions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import events
from textual.content import Content
from textual.message import Message

from edgechat.base.text import figure, one_line, printable
from edgechat.models.remote.model import KINDS
from edgechat.tui.markdown.blocks import EMPTY, RenderedLine
from edgechat.tui.transcript.pieces import Piece, PieceSheet, wrap
from edgechat.tui.transcript.sheet import Sheet

if TYPE_CHECKING:
    from edgechat.planner.plan import LoadPlan

_WORDMARK = (
    ("█▀▀ █▀▄ █▀▀ █▀▀ ", "█▀▀ █ █ █▀█ ▀█▀"),
    ("█▀▀ █ █ █ █ █▀▀ ", "█   █▀█ █▀█  █ "),
    ("▀▀▀ ▀▀  ▀▀▀ ▀▀▀ ", "▀▀▀ ▀ ▀ ▀ ▀  ▀ "),
)
"""'edge' and 'chat' in block characters."""
_LOW = 30
"""Screen height, in lines, below which the wordmark takes up only one line."""
_LEAST, _CARD = 24, 72
"""Minimum and maximum width of the card, in cells."""
_LABEL = 9
_HINT = "Ctrl+O: other models, and more reasons"
_QUESTIONS = {
    "guide": (
        "How do I switch to another model?",
        "How do I attach a file to my question?",
        "Does edgechat work without a network?",
    ),
    "code": (
        "Write a Python function that merges overlapping intervals.",
        r"What does the regular expression ^\d{4}-\d{2}$ match?",
        "How do I undo the last Git commit but keep its changes?",
    ),
    "": (
        "Explain to a ten-year-old why the sky is blue.",
        "Suggest a quick dinner from rice, eggs and spinach.",
        "Rewrite this more politely: I can't come on Friday.",
    ),
}
"""Suggested questions for each kind of model."""
_CODER = re.compile(r"cod(e|er|ing|estral)(?![a-z])|starcoder", re.IGNORECASE)


def questions_for(model: str) -> tuple[str, ...]:
    """Return three questions that suit a model."""
    return _QUESTIONS["guide" if model == "guide" else "code" if _CODER.search(model) else ""]


class WelcomePiece(Piece):
    """The start page of a new conversation. Only its notes remain once there are turns."""

    def __init__(self, plan: LoadPlan | None = None) -> None:
        """plan: the plan of the model that will answer, if already known."""
        super().__init__()
        self._plan = plan
        self._is_begun = False
        self.questions: tuple[str, ...] = ()
        self.question_lines: dict[int, str] = {}
        """Questions, keyed by the number of the line that shows them."""
        self._choose_questions()

    def show_model(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._choose_questions()
        self._changed()

    def _choose_questions(self) -> None:
        self.questions = questions_for(self._plan.model_name) if self._plan is not None else ()

    def append(self, text: str) -> None:
        """Add a note as a paragraph."""
        super().append(f"{text}\n")

    def begin(self) -> None:
        """Clear all but the notes to make room for the turns."""
        self._is_begun, self.questions = True, ()
        self._changed()

    def _new_sheet(self) -> Sheet:
        return WelcomeSheet(self)

    def estimate(self, width: int) -> int:
        return super().estimate(width) + (0 if self._is_begun else 16)

    def lay_out(self, width: int) -> list[RenderedLine]:
        lines: list[RenderedLine] = []
        if not self._is_begun:
            lines += [*self._wordmark(width), EMPTY]
            if self._plan is not None:
                lines += [*_card(self._plan, max(_LEAST, min(width, _CARD))), EMPTY]
        for note in self.text.splitlines():
            lines += wrap(f"! {note}", width, ".warning")
        if self.questions:
            lines += [EMPTY] * bool(self.text)
            lines += self._lay_out_questions(width, len(lines))
        return lines

    def _wordmark(self, width: int) -> list[RenderedLine]:
        is_low = self.sheet is not None and self.sheet.is_attached and self.sheet.screen.size.height < _LOW
        if is_low or width < sum(map(len, _WORDMARK[0])):
            lines = [RenderedLine(Content.assemble(("edge", ".heading"), ("chat", ".current")))]
        else:
            rows = (Content.assemble((edge, ".marker"), (chat, ".current")) for edge, chat in _WORDMARK)
            lines = [RenderedLine(row, len(row)) for row in rows]
        return [*lines, *wrap(self._whereto, width, ".faint")]

    @property
    def _whereto(self) -> str:
        """A sentence saying where the user's text is sent."""
        remote = self._plan.remote if self._plan is not None else None
        if remote is None or not remote.url:  # a server without a URL is edgechat's own child process
            return "What you write stays on this machine."
        return f"What you write is sent to {remote.server}, {one_line(remote.url, 60)}."

    def _lay_out_questions(self, width: int, at: int) -> Iterator[RenderedLine]:
        """Yield the questions' lines, starting at line `at`, and record which question each line shows."""
        yield RenderedLine(Content("To get started").stylize(".heading"))
        self.question_lines = {}
        for number, question in enumerate(self.questions, 1):
            for line in Content(question).wrap(max(1, width - 3)):
                at += 1
                is_first = question not in self.question_lines.values()
                self.question_lines[at] = question
                lead = (f"{number}  ", ".marker") if is_first else "   "
                yield RenderedLine(Content.assemble(lead, line), 3)
        yield from wrap("Type a number and press Enter, or click.", width, ".faint")


class WelcomeSheet(PieceSheet[WelcomePiece]):
    """The start page of a new conversation; clicking a question chooses it."""

    DEFAULT_CSS = """
    WelcomeSheet { pointer: default; }
    """

    @dataclass
    class Chosen(Message):
        """A question was clicked."""

        question: str

    def on_click(self, event: events.Click) -> None:
        question = self._piece.question_lines.get(event.y - self.gutter.top)
        if question is not None and question in self._piece.questions:
            event.stop()
            self.post_message(self.Chosen(question))


def _card(plan: LoadPlan, width: int) -> Iterator[RenderedLine]:
    """Yield the lines of a card about a model: what it is, where it runs, and why."""
    name = one_line(f"{plan.model_name} {plan.quant or ''}", max(4, width - 6))
    rule = "─" * (width - Content(name).cell_length - 5)
    yield RenderedLine(Content.assemble(("╭─ ", ".edge"), (name, ".strong"), (f" {rule}╮", ".edge")))
    for label, text in _facts(plan):
        style = ".warning" if label == "note" else ""
        for at, line in enumerate(Content(printable(text)).stylize(style).wrap(width - _LABEL - 4)):
            head = Content.styled(f"{label if at == 0 else '':<{_LABEL}}", ".faint")
            inside = Content.assemble(head, line).pad_right(width - _LABEL - 4 - line.cell_length)
            yield RenderedLine(Content.assemble(("│ ", ".edge"), inside, (" │", ".edge")), 2)
    hint = f" {_HINT} " if width > len(_HINT) + 6 else "──"
    rule = "─" * (width - len(hint) - 3)
    yield RenderedLine(Content.assemble(("╰─", ".edge"), (hint, ".faint"), (f"{rule}╯", ".edge")))


def _facts(plan: LoadPlan) -> Iterator[tuple[str, str]]:
    if plan.remote is None or plan.remote.context:
        yield "context", f"{plan.context:,} tokens"
    yield "runs on", _where(plan)
    if plan.predicted is not None:
        yield "speed", f"about {figure(plan.predicted.decode_tps)} tokens/s"
    if plan.remote is None:
        yield "drafts", _drafts(plan)
    if plan.adapters:
        yield "adapters", ", ".join(one_line(adapter.name, 40) for adapter in plan.adapters)
    for note in plan.notes:
        yield "note", note
    if plan.reasons:
        yield "why", plan.reasons[0]


def _where(plan: LoadPlan) -> str:
    if plan.program is not None:
        return f"started by edgechat: {KINDS[plan.program.engine]}"
    if plan.remote is not None:
        kind = f"{KINDS[plan.remote.kind]} at " if plan.remote.kind != "openai" else ""
        return f"another server: {kind}{one_line(plan.remote.url, 60)}"
    threads = f"{plan.threads} thread{'s' * (plan.threads != 1)}"
    if not plan.gpu_layers:
        return f"CPU, {threads}"
    devices = ", ".join(one_line(device, 30) for device in plan.devices)
    n_all = plan.n_layers + 1  # llama.cpp counts the output layer too
    return devices if plan.gpu_layers >= n_all else f"{devices} ({plan.gpu_layers} of {n_all} layers), CPU"


def _drafts(plan: LoadPlan) -> str:
    small = plan.draft if plan.head is None else None
    drafters = [one_line(small.model_name, 40)] if small is not None else []
    drafters += ["its own layers (MTP)"] if plan.mtp or plan.head is not None else []
    drafters += ["n-grams of the conversation"] if plan.ngrams else []
    return " and ".join(drafters) or "none"
