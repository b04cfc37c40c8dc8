"""The first screen: this machine, the recommended model and why, and the local models."""

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
from edgechat.tui.terminal.screens import AppScreen, error_text
from edgechat.tui.widgets.key_bar import KeyBar

if TYPE_CHECKING:
    from edgechat.device.profile import DeviceProfile
    from edgechat.planner.ranking.ranked_file import RankedFile
    from edgechat.tui.models.library import ModelLibrary
    from edgechat.tui.models.pulls import Pulls

GUIDE = "guide"
_LOCAL = 9
"""The number of models that can be chosen with a digit."""
_UNUSABLE = ("damaged", Verdict.TOO_LARGE.label)


@dataclass(frozen=True, slots=True)
class FirstRunChoice:
    """How to begin."""

    model: str
    """The model to chat with now."""
    pull: Pull | None = None
    """The download to chat with once it is done."""


class FirstRun(AppScreen[FirstRunChoice | None]):
    """Results in how to begin. It can be left at any time, whatever is known."""

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
        self._requested: Pull | None = None  # the pull that was started here

    def compose(self) -> ComposeResult:
        with Vertical():
            yield KeyedList(id="first")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self._pulls.listen(self._pull_changed)
        self._show()
        self._load()

    def on_unmount(self) -> None:
        self._pulls.unlisten(self._pull_changed)

    @work(exclusive=True)
    async def _load(self) -> None:
        await self._models.load(lambda: self._show() if self.is_open else None)

    def on_resize(self, _: events.Resize) -> None:
        self.call_after_refresh(self._show)  # once the page has its width

    def _show(self) -> None:
        local = [item for item in self._models.items("").values() if item.group is ModelGroup.HERE]
        usable = [item for item in local if item.verdict not in _UNUSABLE and item.name != GUIDE]
        self._local = usable[:_LOCAL]
        rows = self.query_one("#first", KeyedList)
        rows.show_lines(list(self._lines()))
        # Enter must not hit another line than the user saw: the cursor moves only if its line is gone.
        if rows.key is None:
            rows.go_to("best" if self._can_take_best else "1" if self._local else GUIDE)
        self.refresh_bindings()

    def _pull_changed(self, pull: Pull) -> None:
        """Leave once the requested download has really begun; until then it may still fail."""
        if (
            pull is self._requested
            and self.is_current
            and pull.state in (PullState.DOWNLOADING, PullState.DONE)
        ):
            self.dismiss(FirstRunChoice(pull.model) if pull.model else FirstRunChoice(GUIDE, pull))
        elif self.is_open:
            self._show()

    @property
    def _can_take_best(self) -> bool:
        """Whether there is a line for the recommended model; there is while it is not known yet."""
        best = self._best
        if self._models.overview is None:
            return self._models.problem is None
        return best is not None and (best.variant.path is not None or not self._models.offline)

    @property
    def _best(self) -> RankedFile | None:
        overview = self._models.overview
        return overview.found.chosen if overview is not None else None

    # The page.

    def _lines(self) -> Iterator[ListLine]:
        yield _text(("Welcome to edgechat", "bold $primary"))
        yield from self._wrapped("A language model on your own machine, also offline.", "dim", 0)
        yield _text(("\nThis machine", "bold"))
        yield from self._machine()
        yield from self._recommended()
        if self._local:
            yield _text(("\nAlready here", "bold"))
        for number, item in enumerate(self._local, 1):
            yield self._choice(str(number), str(number), one_line(item.name, 40), _describe_local(item))
        yield _text(("\nOr", "bold"))
        yield self._choice(GUIDE, "g", "Ask the guide", "a tiny model about edgechat")
        yield self._choice("models", "m", "See all models", "which fit, and how fast")

    def _machine(self) -> Iterator[ListLine]:
        overview, problem = self._models.overview, self._models.problem
        if problem is not None:
            yield from self._wrapped(error_text(problem), "$error")
        elif overview is None:
            yield from self._wrapped("Inspecting CPU, memory, GPU…", "dim")
        else:
            yield from self._describe_machine(overview.profile, overview.found.machine)

    def _describe_machine(self, profile: DeviceProfile, memory: str) -> Iterator[ListLine]:
        cores = profile.cpu.physical
        yield from self._wrapped(f"{one_line(profile.cpu.name, 60)}, {cores} core{'s' * (cores > 1)}")
        for line in memory.split("\n"):
            yield from self._wrapped(line)
        if not any(card.usable or card == profile.mlx_card for card in profile.accelerators):
            names = ", ".join(one_line(card.name, 40) for card in profile.accelerators)
            text = f"{names}: not supported by this build" if names else "No GPU: models run on the CPU"
            yield from self._wrapped(text)

    def _recommended(self) -> Iterator[ListLine]:
        best, overview = self._best, self._models.overview
        downloads = self._pulls.line()
        if downloads and self._requested is None:
            yield _text(("\nDownloading", "bold"))
            yield from self._wrapped(downloads)
        if overview is None and self._models.problem is not None:
            return
        yield _text(("\nRecommended", "bold"))
        if overview is None:
            yield self._choice("best", "⏎", "Finding the best model for this machine…", "")
        elif best is None or best.plan is None:
            text = "No model of the catalogue fits into the memory that is free now."
            yield from self._wrapped(text, "$warning")
        else:
            yield from self._describe_best(best, best.plan.reasons)

    def _describe_best(self, best: RankedFile, reasons: Sequence[str]) -> Iterator[ListLine]:
        is_local, entry = best.variant.path is not None, best.variant.entry
        name = f"{one_line(best.variant.model, 40)} {best.quant or ''}".rstrip()
        yield _text((f"  {BEST} ", "$accent"), (name, "bold"))
        quality = f" · quality {entry.quality} of 6" if entry is not None and entry.quality else ""
        size = f"{mebibytes(best.variant.size)} {'on this machine' if is_local else 'to download'}"
        yield from self._wrapped(f"{size} · {speed(best.predicted.decode_tps)} tokens/s{quality}", "", 4)
        if self._can_take_best:
            yield from self._take_line(is_local)
        else:
            text = f"It cannot be downloaded now: {self._models.offline} keeps edgechat offline."
            yield from self._wrapped(text, "$warning", 4)
        has_room = self.has_class("-high")
        for reason in dict.fromkeys((*reasons[:2], *reasons[-1:]) if has_room else reasons[:1]):
            yield from self._wrapped(reason, "dim", 4)

    def _take_line(self, is_local: bool) -> Iterator[ListLine]:
        pull = self._requested
        if is_local:
            yield self._choice("best", "⏎", "Chat with it", "")
        elif pull is None:
            yield self._choice("best", "⏎", "Download and chat", "meanwhile, the guide answers")
        elif pull.is_over:
            yield self._choice("best", "⏎", "Try again", "or choose another model below")
            hint = pull.error.hint if pull.error is not None else None
            text = f"{pull.line} {hint}" if hint else pull.line
            yield from self._wrapped(text, "$error", 4)
        else:
            yield self._choice("best", " ", f"{pull.line}…".capitalize(), "")

    @property
    def _width(self) -> int:
        return max(40, (self.query_one("#first", KeyedList).size.width or 60) - 1)

    def _wrapped(self, text: str, style: str = "", indent: int = 2) -> Iterator[ListLine]:
        for line in textwrap.wrap(printable(text), self._width - indent) or [""]:
            yield _text((" " * indent + line, style))

    def _choice(self, key: str, label: str, title: str, note: str) -> ListLine:
        """Return a line that can be chosen. label: the key to press."""
        start = f"    {label}  "
        room = self._width - len(start) - len(title) - 3
        end = f"   {one_line(note, room)}" if note and room > 8 else ""
        return ListLine(Content.assemble((start, "bold $primary"), title, (end, "dim")), key)

    # Choosing.

    @on(OptionList.OptionSelected)
    def action_take(self) -> None:
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
            path, rows = best.variant.path, self._models.rows
            local_name = next((row.model.name for row in rows if row.model.path == path), None)
            self.dismiss(FirstRunChoice(local_name or best.variant.model))
        elif self._requested is None or self._requested.is_over:
            self._requested = self._pulls.start(best.variant.model)
            self._pull_changed(self._requested)

    def action_guide(self) -> None:
        self.dismiss(FirstRunChoice(GUIDE, self._pulls.current))

    def action_local(self, number: int) -> None:
        if number <= len(self._local):
            self.dismiss(FirstRunChoice(self._local[number - 1].name, self._pulls.current))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Allow the digits of the models that are listed."""
        if action == "local" and isinstance(parameters[0], int):
            return parameters[0] <= len(self._local)
        return True

    @work
    async def action_models(self) -> None:
        name = await self.app.push_screen_wait(self._all_models())
        if name is not None:
            self.dismiss(FirstRunChoice(name, self._pulls.current))


def _text(*parts: tuple[str, str]) -> ListLine:
    return ListLine(Content.assemble(*parts))


def _describe_local(item: ModelItem) -> str:
    where = item.row.model.place.value if item.row is not None else ""
    tps = f", {speed(item.speed, is_measured=item.is_measured)} tokens/s" if item.speed is not None else ""
    return f"{mebibytes(item.size)}, {where}, {item.verdict}{tps}"
