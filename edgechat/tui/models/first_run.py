"""First-run screen: this machine, up to three recommended models, and the local models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar

from textual import events, on, work
from textual.app import ComposeResult, RenderResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from edgechat.base.text import one_line, printable
from edgechat.planner.ranking.ranking import Verdict
from edgechat.planner.ranking.suggestions import FirstModel, Role, standing
from edgechat.tui.models.descriptions import RECOMMENDED, caption, card, describe_local, roles
from edgechat.tui.models.known_models import KnownModels, ModelItem
from edgechat.tui.models.pulls import Pull, Pulls
from edgechat.tui.widgets.dialogs import AppScreen, error_text
from edgechat.tui.widgets.key_bar import KeyBar

if TYPE_CHECKING:
    from edgechat.device.profile import DeviceProfile
    from edgechat.tui.models.library import ModelLibrary


GUIDE = "guide"
_LOCAL = 9
"""Number of local models that can be chosen by pressing a digit."""
_CARDS = len(Role)
_UNUSABLE = ("damaged", Verdict.TOO_LARGE.label)


@dataclass(frozen=True, slots=True)
class FirstRunChoice:
    """The user's choice on the first-run screen."""

    model: str
    """The model to chat with now."""
    pull: Pull | None = None
    """Download of the model that will answer once the download is complete."""
    follower: Pull | None = None
    """Download of a better model, which is offered once the download is complete."""


class Choice(Widget, can_focus=True):
    """A choice, shown as a line or a bordered card. A second click chooses it; the screen handles Enter."""

    DEFAULT_CSS = """
    Choice {
        height: auto;
        pointer: pointer;
        &:focus {
            background: $block-cursor-background;
            color: $block-cursor-foreground;
            text-style: $block-cursor-text-style;
        }
        &.-card {
            border: round $border-blurred;
            border-title-style: bold;
            border-title-color: $foreground;
            border-subtitle-color: $foreground;
            padding: 0 1;
        }
        &.-card:focus {
            border: heavy $primary;
            background: $background;
            color: $foreground;
            text-style: none;
        }
    }
    """

    class Chosen(Message):
        """The choice was clicked a second time."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._text = Content()
        self._was_clicked = False

    def show(self, text: Content) -> None:
        if not text.is_same(self._text) or text.spans != self._text.spans:
            self._text = text
            self.refresh(layout=True)

    def render(self) -> RenderResult:
        # Other colours might be illegible on the cursor's background.
        return Content(self._text.plain) if self.has_focus and not self.has_class("-card") else self._text

    def on_blur(self) -> None:
        self._was_clicked = False

    def on_click(self, event: events.Click) -> None:
        event.stop()
        if self._was_clicked:
            self.post_message(self.Chosen())
        self._was_clicked = True


class FirstRun(AppScreen[FirstRunChoice | None]):
    """A screen that lets the user choose how to start. It can be closed at any time."""

    DEFAULT_CSS = """
    FirstRun {
        background: $background;
        & > VerticalScroll { height: 1fr; align-horizontal: center; scrollbar-size-vertical: 1; }
        & #page { width: 100%; max-width: 106; height: auto; padding: 0 1; }
        & Static { height: auto; }
        & .title { text-style: bold; margin-top: 1; }
        & #welcome { text-style: bold; color: $primary; }
        & #caption, & #machine { padding-left: 2; }
        & #caption { color: $foreground; text-style: dim; }
        & #problem, & #network { padding-left: 2; color: $warning; }
        & #cards { height: auto; }
        &.-wide #cards { layout: horizontal; & Choice { width: 1fr; max-width: 35; margin-right: 1; } }
        &.-high > VerticalScroll { padding-top: 2; }
        &.-high.-narrow #cards Choice { margin-bottom: 1; }
    }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (84, "-wide")]  # noqa: RUF012  (as in Screen)
    VERTICAL_BREAKPOINTS = [(0, "-low"), (32, "-high")]  # noqa: RUF012
    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "take", "Choose"),
        # These take precedence over the page's own bindings, which scroll it.
        Binding("left", "move_card(-1)", "Card", key_display="←→", priority=True),
        Binding("right", "move_card(1)", "Next card", show=False, priority=True),
        Binding("up,k", "move(-1)", "Up", show=False, priority=True),
        Binding("down,j", "move(1)", "Down", show=False, priority=True),
        Binding("b", "both", "Both"),
        Binding("g", "guide", "Guide"),
        Binding("m", "models", "All models"),
        Binding("1", "local(1)", "Local model", key_display="1-9"),
        *(Binding(str(n), f"local({n})", "Local model", show=False) for n in range(2, _LOCAL + 1)),
        Binding("r", "refresh", "Look again", show=False),
        Binding("escape", "guide", "Guide", show=False),
    ]

    def __init__(
        self, library: ModelLibrary, pulls: Pulls, all_models: Callable[[], Screen[str | None]]
    ) -> None:
        """all_models: creates the screen that lists all models."""
        super().__init__()
        self._all_models = all_models
        self._pulls = pulls
        self._models = KnownModels(library, pulls)
        self._local: list[ModelItem] = []
        self._last_card: Choice | None = None
        """The card that was last focused."""
        self._placed = ""
        """ID of the widget that the screen itself focused. If another has the focus, the user has moved."""

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=False), Vertical(id="page"):
            yield Static("Welcome to edgechat", id="welcome")
            yield Static(id="machine", markup=False)
            yield Static(id="problem", markup=False)
            yield Static(id="network", markup=False)
            yield Static("Begin with", classes="title", id="begin")
            with Container(id="cards"):
                yield from (Choice(id=f"card-{n}") for n in range(_CARDS))
            yield Static(id="caption", markup=False)
            yield Static("On this machine", classes="title", id="here")
            yield from (Choice(id=f"local-{n}") for n in range(1, _LOCAL + 1))
            yield Static("Or", classes="title", id="or")
            yield from (Choice(id=name) for name in ("both", "guide", "models"))
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self._pulls.listen(self._pull_changed)
        self._show()
        self.action_refresh()

    def on_unmount(self) -> None:
        self._pulls.unlisten(self._pull_changed)

    @work(exclusive=True)
    async def action_refresh(self) -> None:
        await self._models.load(lambda: self._show() if self.is_open else None, probe=True)

    def _pull_changed(self, _: Pull) -> None:
        if self.is_open:
            self._show()

    def on_resize(self, _: events.Resize) -> None:
        self.call_after_refresh(self._show)  # once the page's width is known

    # Data.

    @property
    def _cards(self) -> Sequence[FirstModel]:
        """The recommended models; empty without a network, in which case local models come first."""
        return () if self._no_network else self._models.first

    @property
    def _is_pending(self) -> bool:
        """Whether recommended models may appear soon."""
        return self._models.overview is None and self._models.problem is None and not self._no_network

    @property
    def _no_network(self) -> str:
        """Why nothing can be downloaded, as a sentence; empty if downloads are possible."""
        if self._models.offline:
            return f"{self._models.offline} keeps edgechat offline."
        return self._models.unreachable

    @property
    def _better(self) -> FirstModel | None:
        """A model that can be downloaded in the background after the first one."""
        return next((shown for shown in self._cards[1:] if shown.download), None)

    # The page.

    def _show(self) -> None:
        at_cursor = self._local_at_cursor()
        self._local = self._best_here()
        self._show_text("machine", self._machine())
        self._show_text("problem", self._problem())
        self._show_text("caption", caption(self._cards, self._models.rate))
        self._show_text("network", self._network())
        self._show_cards()
        self.query_one("#here").display = bool(self._local)
        has_others = bool(self._cards or self._local) or self._is_pending
        self.query_one("#or", Static).update("Or" if has_others else "Begin with")
        for number in range(1, _LOCAL + 1):
            item = self._local[number - 1] if number <= len(self._local) else None
            note = describe_local(item) if item is not None else ""
            self._show_line(f"local-{number}", str(number), item.name if item is not None else "", note)
        better = self._better
        both = f"{self._cards[0].roles[0].value} now, then {better.file.variant.model}" if better else ""
        self._show_line("both", "b", both, "offered once downloaded")
        self._show_line("guide", "g", "Ask the guide", "a tiny model that knows edgechat")
        self._show_line("models", "m", "See all models", "which fit, and how fast")
        self._place_cursor(at_cursor)
        self.refresh_bindings()

    def _best_here(self) -> list[ModelItem]:
        """Return the usable local models except the guide, best first."""
        standings = [
            (standing(item.row, item.option), item)
            for item in self._models.items("").values()
            if item.row is not None and item.row.glance.kind == "chat" and item.name != GUIDE
        ]
        usable = [pair for pair in standings if pair[1].verdict not in _UNUSABLE]
        return [item for _, item in sorted(usable, key=itemgetter(0), reverse=True)][:_LOCAL]

    def _show_text(self, id: str, text: str | Content) -> None:
        widget = self.query_one(f"#{id}", Static)
        widget.display = bool(text)
        widget.update(text)

    def _show_cards(self) -> None:
        cards, is_wide, is_pending = self._cards, self.has_class("-wide"), self._is_pending
        self.query_one("#begin").display = bool(cards) or is_pending
        for number in range(_CARDS):
            choice = self._choice(f"card-{number}")
            choice.display = number < len(cards) or (number == 0 and is_pending)
            if number < len(cards):
                shown = cards[number]
                choice.set_class(is_wide, "-card")
                choice.border_title = roles(shown) if is_wide else ""
                choice.border_subtitle = RECOMMENDED if is_wide and shown.is_recommended else ""
                choice.show(card(shown, self._models.rate, is_wide=is_wide))
            elif number == 0 and is_pending:
                choice.show(Content("  Finding the best models for this machine…"))

    def _show_line(self, id: str, key: str, title: str, note: str) -> None:
        """Show a choice as one line, or hide it if it has no title. key: the key to press."""
        choice = self._choice(id)
        choice.display = bool(title)
        start, title = f"  {key}  ", one_line(title, 48)
        room = self._width - len(start) - len(title) - 3
        end = f"   {one_line(note, room)}" if note and room > 8 else ""
        choice.show(Content.assemble((start, "bold $primary"), title, (end, "dim")))

    @property
    def _width(self) -> int:
        return max(40, (self.query_one("#cards").size.width or 60) - 1)

    def _machine(self) -> Content | str:
        overview = self._models.overview
        if overview is not None:
            return printable("\n".join(_describe_machine(overview.profile, overview.found.machine)))
        return (
            "" if self._models.problem is not None else Content.styled("Inspecting CPU, memory, GPU…", "dim")
        )

    def _problem(self) -> str:
        if self._models.problem is not None:
            return printable(error_text(self._models.problem))
        if self._models.overview is not None and not self._models.first:
            return "No model in the catalogue fits into the memory that is free now."
        return ""

    def _network(self) -> str:
        if self._no_network:
            return printable(f"Offline: {self._no_network} Models on this machine work without it.")
        current = self._pulls.line()
        return f"Downloading {current}" if current else ""

    # The cursor.

    def _choice(self, id: str) -> Choice:
        return self.query_one(f"#{id}", Choice)

    @property
    def _choices(self) -> list[Choice]:
        return [choice for choice in self.query(Choice) if choice.display]

    def _local_at_cursor(self) -> ModelItem | None:
        """Return the local model that the user has moved the cursor to, if any."""
        kind, _, number = str(self.focused.id if self.focused is not None else "").partition("-")
        is_local = kind == "local" and f"{kind}-{number}" != self._placed
        return self._local[int(number) - 1] if is_local else None

    def _place_cursor(self, at: ModelItem | None) -> None:
        """Focus the best choice unless the user has moved. at: the local model they moved to, if any."""
        keys = [item.key for item in self._local]
        if at is not None and at.key in keys:
            self.set_focus(self._choice(f"local-{keys.index(at.key) + 1}"))
        elif self.focused not in self._choices or str(self.focused.id) == self._placed:
            self._placed = self._default()
            self.set_focus(self._choice(self._placed))
            self.call_after_refresh(self._scroll_to_cursor)

    def _scroll_to_cursor(self) -> None:
        if self.focused is not None:
            self.focused.scroll_visible(animate=False)

    def _default(self) -> str:
        if self._cards or self._is_pending:
            recommended = (n for n, shown in enumerate(self._cards) if shown.is_recommended)
            return f"card-{next(recommended, 0)}"
        return "local-1" if self._local else GUIDE

    def action_move(self, by: int) -> None:
        """Move to the next (1) or previous (-1) line; side-by-side cards count as one line."""
        choices, focused = self._choices, self.focused
        if not isinstance(focused, Choice) or focused not in choices:
            return
        cards = [choice for choice in choices if choice.has_class("-card")]
        if focused in cards:
            self._last_card = focused
        others = [choice for choice in choices if choice not in cards or choice is self._card_in(cards)]
        index = others.index(focused) + by
        if 0 <= index < len(others):
            self.set_focus(others[index])

    def _card_in(self, cards: list[Choice]) -> Choice | None:
        """Return the card that was last focused, or else the first one."""
        return self._last_card if self._last_card in cards else next(iter(cards), None)

    def action_move_card(self, by: int) -> None:
        """Move to the next (1) or previous (-1) card."""
        cards = [choice for choice in self._choices if str(choice.id).startswith("card")]
        if self.focused in cards:
            index = cards.index(self.focused) + by
            self.set_focus(cards[max(0, min(index, len(cards) - 1))])

    # Choosing.

    @on(Choice.Chosen)
    def action_take(self) -> None:
        kind, _, number = str(self.focused.id if self.focused is not None else "").partition("-")
        match kind:
            case "card":
                self._take(int(number))
            case "local":
                self.action_local(int(number))
            case "both":
                self.action_both()
            case "models":
                self.action_models()
            case _:
                self.action_guide()

    def _take(self, number: int) -> None:
        if number < len(self._cards):  # otherwise, the model is not known yet
            self.dismiss(self._begin_with(self._cards[number]))

    def _begin_with(self, shown: FirstModel) -> FirstRunChoice:
        variant = shown.file.variant
        if variant.path is None:
            return FirstRunChoice(GUIDE, self._pulls.start(variant.model))
        rows = self._models.rows
        local_name = next((row.model.chat_name for row in rows if row.model.path == variant.path), None)
        return FirstRunChoice(local_name or variant.model)

    def action_both(self) -> None:
        better = self._better
        if better is not None:
            choice = self._begin_with(self._cards[0])
            self.dismiss(replace(choice, follower=self._pulls.start(better.file.variant.model)))

    def action_guide(self) -> None:
        self.dismiss(FirstRunChoice(GUIDE, self._pulls.current))

    def action_local(self, number: int) -> None:
        if number <= len(self._local) and (row := self._local[number - 1].row) is not None:
            self.dismiss(FirstRunChoice(row.model.chat_name, self._pulls.current))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        match action, parameters:
            case "local", (int(number),):
                return number <= len(self._local)
            case "both", _:
                return self._better is not None
            case "move_card", _:
                return len(self._cards) > 1
        return True

    @work
    async def action_models(self) -> None:
        name = await self.app.push_screen_wait(self._all_models())
        if name is not None:
            self.dismiss(FirstRunChoice(name, self._pulls.current))


def _describe_machine(profile: DeviceProfile, memory: str) -> Iterator[str]:
    cores = profile.cpu.physical
    yield f"{one_line(profile.cpu.name, 60)}, {cores} core{'s' * (cores > 1)}"
    yield memory
    if not any(card.usable or card == profile.mlx_card for card in profile.accelerators):
        names = ", ".join(one_line(card.name, 40) for card in profile.accelerators)
        yield f"{names}: not supported by this build" if names else "No GPU: models run on the CPU"
