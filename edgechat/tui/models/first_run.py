"""The first thing that anyone sees: what this machine is, what is recommended and why, what is here."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import OptionList

from edgechat.base.text import mebibytes, one_line, printable
from edgechat.planner.ranking.scoring import Verdict
from edgechat.tui.models.items import BEST, ModelGroup, ModelItem, speed
from edgechat.tui.models.keyed_list import KeyedList, ListLine
from edgechat.tui.models.known_models import KnownModels
from edgechat.tui.models.pull import Pull, PullState
from edgechat.tui.terminal.resizing import StaleResizeFilter
from edgechat.tui.widgets.key_bar import KeyBar

if TYPE_CHECKING:
    from edgechat.device.profile import DeviceProfile
    from edgechat.planner.ranking.ranked_file import RankedFile
    from edgechat.tui.models.library import ModelLibrary
    from edgechat.tui.models.pulls import Pulls

GUIDE = "guide"
_LOCAL = 9
"""Models that a digit chooses."""
_UNUSABLE = ("damaged", Verdict.TOO_LARGE.label)


@dataclass(frozen=True, slots=True)
class FirstRunChoice:
    """What to begin with."""

    model: str
    """To chat with now."""
    pull: Pull | None = None
    """On its way: to chat with once it is here."""


class FirstRun(StaleResizeFilter, Screen[FirstRunChoice | None]):
    """Returns what to begin with. All of it can be left at once, whatever is known."""

    DEFAULT_CSS = """
    FirstRun {
        background: $background;
        align: center middle;
        & > Vertical { width: 100%; height: 1fr; align: center top; padding: 0 1; }
        &.-high > Vertical { padding-top: 2; }
        & KeyedList, & KeyedList:focus { width: 100%; max-width: 84; height: auto; max-height: 100%; }
    }
    """
    VERTICAL_BREAKPOINTS = [(0, "-low"), (32, "-high")]  # noqa: RUF012  (as in Screen)
    AUTO_FOCUS = "#first"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "take", "Choose"),
        Binding("g", "guide", "Guide"),
        Binding("m", "models", "All models"),
        Binding("1", "local(1)", "Local model", key_display="1-9"),
        *(Binding(str(n), f"local({n})", "Local model", show=False) for n in range(2, _LOCAL + 1)),
        Binding("escape", "guide", "Guide", show=False),
    ]

    def __init__(
        self, library: ModelLibrary, pulls: Pulls, all_models: Callable[[], Screen[str | None]]
    ) -> None:
        """all_models: makes the screen in which any model can be chosen."""
        super().__init__()
        self._all_models = all_models
        self._library, self._pulls = library, pulls
        self._models = KnownModels(library, pulls)
        self._local: list[ModelItem] = []
        self._asked: Pull | None = None  # the pull that was begun here
        self._unlisten: Callable[[], None] = lambda: None

    def compose(self) -> ComposeResult:
        """One page, whose lines are walked."""
        with Vertical():
            yield KeyedList(id="first")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        """Begin to look; the guide can be had at once."""
        self._unlisten = self._pulls.listen(self._pull_changed)
        self._show()
        self._load()

    def on_unmount(self) -> None:
        """Listen no more."""
        self._unlisten()

    @work(exclusive=True)
    async def _load(self) -> None:
        await self._models.load(lambda: self._show() if self in self.app.screen_stack else None)

    def on_resize(self, _: events.Resize) -> None:
        """Break the lines anew, once the page has its width."""
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        found = [one for one in self._models.items("").values() if one.group is ModelGroup.HERE]
        usable = [one for one in found if one.verdict not in _UNUSABLE and one.name != GUIDE]
        self._local = usable[:_LOCAL]
        rows = self.query_one("#first", KeyedList)
        rows.show_lines(list(self._lines()))
        # Nobody's Enter meets another line than the one they saw: the cursor moves only where its own goes.
        if rows.key is None:
            rows.go_to("best" if self._can_take_best else "1" if self._local else GUIDE)
        self.refresh_bindings()

    def _pull_changed(self, pull: Pull) -> None:
        """Leave once what was asked for is really coming; until then it may turn out that it cannot be."""
        if pull is self._asked and self.is_current and pull.state in (PullState.DOWNLOADING, PullState.DONE):
            self.dismiss(FirstRunChoice(pull.model) if pull.model else FirstRunChoice(GUIDE, pull))
        elif self in self.app.screen_stack:
            self._show()

    @property
    def _can_take_best(self) -> bool:
        """Whether there is a line for what is recommended; while that is not known yet there is."""
        best, held = self._best, self._models.known.overview
        if held is None:
            return self._models.problem is None
        return best is not None and (best.variant.path is not None or not self._models.offline)

    @property
    def _best(self) -> RankedFile | None:
        held = self._models.known.overview
        return held.found.chosen if held is not None else None

    # The page.

    def _lines(self) -> Iterator[ListLine]:
        yield _text(("Welcome to edgechat", "bold $primary"))
        text = "A language model on your own machine, also offline."
        yield from self._wrapped(text, "dim", 0)
        yield _text(("\nThis machine", "bold"))
        yield from self._machine()
        yield from self._recommended()
        if self._local:
            yield _text(("\nAlready here", "bold"))
        for number, item in enumerate(self._local, 1):
            yield self._choice(str(number), str(number), one_line(item.name, 40), _of_local(item))
        yield _text(("\nOr", "bold"))
        yield self._choice(GUIDE, "g", "Ask the guide", "a tiny model about edgechat")
        yield self._choice("models", "m", "See all models", "which fit, and how fast")

    def _machine(self) -> Iterator[ListLine]:
        held, problem = self._models.known.overview, self._models.problem
        if problem is not None:
            text = " ".join(filter(None, (problem.message, problem.hint)))
            yield from self._wrapped(text, "$error")
        elif held is None:
            yield from self._wrapped("Inspecting CPU, memory, GPU…", "dim")
        else:
            for line in _in_words(held.profile, held.found.machine):
                yield from self._wrapped(line)

    def _recommended(self) -> Iterator[ListLine]:
        best, held = self._best, self._models.known.overview
        going = self._pulls.line()
        if going and self._asked is None:
            yield _text(("\nDownloading", "bold"))
            yield from self._wrapped(going)
        if held is None and self._models.problem is not None:
            return
        yield _text(("\nRecommended", "bold"))
        if held is None:
            yield self._choice("best", "⏎", "Finding the best model for this machine…", "")
        elif best is None or best.plan is None:
            text = "No model of the catalogue fits into the memory that is free now."
            yield from self._wrapped(text, "$warning")
        else:
            yield from self._best_one(best, best.plan.reasons)

    def _best_one(self, best: RankedFile, reasons: Sequence[str]) -> Iterator[ListLine]:
        is_here, entry = best.variant.path is not None, best.variant.entry
        name = f"{one_line(best.variant.model, 40)} {best.quant or ''}".rstrip()
        yield _text((f"  {BEST} ", "$accent"), (name, "bold"))
        quality = f" · quality {entry.quality} of 6" if entry is not None and entry.quality else ""
        size = f"{mebibytes(best.variant.size)} {'on this machine' if is_here else 'to download'}"
        yield from self._wrapped(f"{size} · {speed(best.predicted.decode_tps)} tokens/s{quality}", "", 4)
        if self._can_take_best:
            yield from self._take_line(is_here)
        else:
            text = f"It cannot be downloaded now: {self._models.offline} keeps edgechat offline."
            yield from self._wrapped(text, "$warning", 4)
        several = self.has_class("-high")
        for reason in dict.fromkeys((*reasons[:2], *reasons[-1:]) if several else reasons[:1]):
            yield from self._wrapped(reason, "dim", 4)

    def _take_line(self, is_here: bool) -> Iterator[ListLine]:
        pull = self._asked
        if is_here:
            yield self._choice("best", "⏎", "Chat with it", "")
        elif pull is None:
            yield self._choice("best", "⏎", "Download and chat", "meanwhile, the guide answers")
        elif pull.is_over:
            yield self._choice("best", "⏎", "Try again", "or choose another model below")
            text = " ".join(filter(None, (pull.line, pull.error.hint if pull.error is not None else "")))
            yield from self._wrapped(text, "$error", 4)
        else:
            yield self._choice("best", " ", f"{pull.line}…".capitalize(), "")

    @property
    def _width(self) -> int:
        return max(40, (self.query_one("#first", KeyedList).size.width or 60) - 1)

    def _wrapped(self, text: str, style: str = "", indent: int = 2) -> Iterator[ListLine]:
        for line in textwrap.wrap(printable(text), self._width - indent) or [""]:
            yield _text((" " * indent + line, style))

    def _choice(self, key: str, shown: str, does: str, more: str) -> ListLine:
        first = f"    {shown}  "
        room = self._width - len(first) - len(does) - 3
        after = f"   {one_line(more, room)}" if more and room > 8 else ""
        return ListLine(Content.assemble((first, "bold $primary"), does, (after, "dim")), key)

    # What one does.

    @on(OptionList.OptionSelected)
    def action_take(self) -> None:
        """Do what one is at."""
        match self.query_one("#first", KeyedList).key:
            case "best":
                self._take_best()
            case "models":
                self.action_models()
            case key if key is not None and key.isdigit():
                self.action_local(int(key))
            case _:
                self.action_guide()

    def _take_best(self) -> None:
        best = self._best
        if best is None:  # not known yet
            return
        if best.variant.path is not None:
            rows = self._models.known.rows
            here = [row.model.name for row in rows if row.model.path == best.variant.path]
            self.dismiss(FirstRunChoice(here[0] if here else best.variant.model))
        elif self._asked is None or self._asked.is_over:
            self._asked = self._pulls.start(best.variant.model)
            self._pull_changed(self._asked)

    def action_guide(self) -> None:
        """Chat with the guide; what is on its way comes all the same."""
        self.dismiss(FirstRunChoice(GUIDE, self._pulls.current))

    def action_local(self, number: int) -> None:
        """Chat with a model that is here."""
        if number <= len(self._local):
            self.dismiss(FirstRunChoice(self._local[number - 1].name, self._pulls.current))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A digit means something where that many models are here."""
        if action == "local" and isinstance(parameters[0], int):
            return parameters[0] <= len(self._local)
        return True

    @work
    async def action_models(self) -> None:
        """Show all models; what is chosen there is what to begin with."""
        name = await self.app.push_screen_wait(self._all_models())
        if name is not None:
            self.dismiss(FirstRunChoice(name, self._pulls.current))


def _text(*parts: tuple[str, str]) -> ListLine:
    return ListLine(Content.assemble(*parts))


def _of_local(item: ModelItem) -> str:
    where = item.row.model.place.value if item.row is not None else ""
    tps = f", {speed(item.speed, is_measured=item.is_measured)} tokens/s" if item.speed is not None else ""
    return f"{mebibytes(item.size)}, {where}, {item.verdict}{tps}"


def _in_words(profile: DeviceProfile, machine: str) -> Iterator[str]:
    cores = profile.cpu.physical
    yield f"{one_line(profile.cpu.name, 60)}, {cores} core{'s' * (cores > 1)}"
    yield from machine.split("\n")
    if not any(card.usable or card == profile.mlx_card for card in profile.accelerators):
        known = ", ".join(one_line(card.name, 40) for card in profile.accelerators)
        yield f"{known}: not supported by this build" if known else "No GPU: models run on the CPU"
