"""Dialog for a conversation's system prompt and parameters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Label, Select, Static

from edgechat.base.errors import EdgechatError, SettingsError
from edgechat.base.text import one_line, printable
from edgechat.chat.parameters import THINK, Adjustable, number
from edgechat.chat.records import ChatSettings
from edgechat.chat.session import ChatSession
from edgechat.engine.types import Sampling
from edgechat.settings import Preset, SamplingDefaults, checked
from edgechat.settings.documentation import describe_type
from edgechat.tui.widgets.dialogs import AppDialog
from edgechat.tui.widgets.fields import Area, LineField

_THINK = [("the model's default", "auto"), ("always", "on"), ("never", "off")]


@dataclass(frozen=True, slots=True)
class Parameters:
    """The edited values."""

    system: str | None
    settings: ChatSettings
    save_as: str = ""
    """Name of a preset to save them as, or '' to save no preset."""


class ParametersScreen(AppDialog[None]):
    """A dialog for the system prompt and parameters. It stays open and shows the error if saving fails."""

    DEFAULT_CSS = """
    ParametersScreen {
        & > .frame { width: 76; height: 25; }
        #fields { height: 1fr; }
        #system { height: 6; margin: 0 0 1 0; border: round $border-blurred; background: $surface; }
        #system:focus { border: round $primary; }
        .row { height: 1; }
        .row Label { width: 22; margin: 0 1 0 0; }
        .row Input, .row Select { width: 1fr; background: $surface; }
        .row Input { height: 1; border: none; border-left: outer $border-blurred; padding: 0 1; }
        .row Input:focus { border-left: outer $primary; }
        /* Textual's has a border above and below, which leaves no line for the text. */
        .row Input.-invalid, .row Input.-invalid:focus {
            border: none; border-left: outer $error; color: $error;
        }
        .row Static { width: 20; margin: 0 0 0 1; text-style: dim; }
        #save { margin: 1 0; }
        #problem { color: $error; height: auto; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "save", "Save", priority=True),
        Binding("escape", "dismiss", "Cancel"),
    ]

    def __init__(
        self,
        system: str | None,
        settings: ChatSettings,
        presets: dict[str, Preset],
        defaults: Sampling,
        *,
        can_think: bool,
        save: Callable[[Parameters], Awaitable[None]],
        known: Collection[str] | None = None,
    ) -> None:
        """defaults: used for empty fields. can_think: whether thinking can be switched on and off.

        save: receives the values; may raise EdgechatError. known: the fields whose defaults are known; None
        means all of them, as for a local model.
        """
        super().__init__()
        self._system = system
        self._settings = settings
        self._presets = presets
        self._defaults, self._known = defaults, known
        self._can_think = can_think
        self._save = save

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame") as box:
            box.border_title = "This conversation"
            box.border_subtitle = "Tab: next field · Ctrl+S: save · Esc: cancel"
            yield from self._fields()
            yield Static(id="problem", markup=False)

    def _fields(self) -> ComposeResult:
        with VerticalScroll(id="fields"):
            yield Label("System prompt")
            yield Area(self._system or "", id="system", tab_behavior="focus")
            if self._presets:
                with Horizontal(classes="row"):
                    yield Label("Apply a preset")
                    named = [(Content(one_line(name, 40)), name) for name in self._presets]
                    yield Select(named, prompt="none", id="preset", compact=True)
            if self._can_think:
                with Horizontal(classes="row"):
                    yield Label("Thinking")
                    value = {think: name for name, think in THINK.items()}[self._settings.think]
                    yield Select(_THINK, value=value, allow_blank=False, id="think", compact=True)
            values, defaults = self._settings.sampling.given(), msgspec.structs.asdict(self._defaults)
            for name in SamplingDefaults.__struct_fields__:
                with Horizontal(classes="row"):
                    yield Label(name.replace("_", " "))
                    yield LineField(_text(values.get(name)), id=name)
                    is_known = self._known is None or name in self._known
                    default = f"default {_text(defaults[name])}" if is_known else "server's default"
                    yield Static(default)
            with Horizontal(classes="row", id="save"):
                yield Label("Save as preset")
                yield LineField(placeholder="a name (optional)", id="save-as", max_length=40)

    def on_mount(self) -> None:
        self.query_one("#system").focus()

    @on(Select.Changed, "#preset")
    def _apply_preset(self, event: Select.Changed) -> None:
        preset = self._presets.get(str(event.value))
        if preset is None:
            return
        # Fields that the preset does not set stay unchanged.
        if preset.adapters is not None:
            self._settings = msgspec.structs.replace(self._settings, adapters=preset.adapters)
        if preset.system is not None:
            self.query_one("#system", Area).text = preset.system
        if self._can_think and preset.think is not None:
            self.query_one("#think", Select).value = "on" if preset.think else "off"
        for name, value in preset.sampling.given().items():
            self.query_one(f"#{name}", LineField).value = _text(value)

    @on(LineField.Changed)
    def _changed(self, event: LineField.Changed) -> None:
        fields = [self.query_one(f"#{name}", LineField) for name in SamplingDefaults.__struct_fields__]
        if event.input in fields:
            problems = [self._problem_with(field.id or "", field.value) for field in fields]
            for field, problem in zip(fields, problems, strict=True):
                field.set_class(problem is not None, "-invalid")
            self.query_one("#problem", Static).update(next(filter(None, problems), ""))

    @on(LineField.Submitted)
    def action_save(self) -> None:
        values: dict[str, Any] = {}
        for name in SamplingDefaults.__struct_fields__:
            field = self.query_one(f"#{name}", LineField)
            problem = self._problem_with(name, field.value)
            if problem is not None:
                self.query_one("#problem", Static).update(problem)
                field.focus()
                return
            if field.value.strip():
                values[name] = number(field.value)
        think = (
            THINK[str(self.query_one("#think", Select).value)] if self._can_think else self._settings.think
        )
        sampling = SamplingDefaults(**values)
        settings = msgspec.structs.replace(self._settings, think=think, sampling=sampling)
        system = printable(self.query_one("#system", Area).text).strip() or None
        save_as = self.query_one("#save-as", LineField).value.strip()
        self._save_and_close(Parameters(system, settings, save_as))

    @work(exclusive=True)
    async def _save_and_close(self, chosen: Parameters) -> None:
        try:
            await self._save(chosen)
        except EdgechatError as error:
            self.query_one("#problem", Static).update(f"{error.message} {error.hint or ''}".strip())
        else:
            self.dismiss()

    def _problem_with(self, name: str, text: str) -> str | None:
        if not text.strip():
            return None
        try:
            checked({name: number(text)}, SamplingDefaults, "Parameters")
        except SettingsError:
            types = {field.name: field.type for field in msgspec.structs.fields(SamplingDefaults)}
            return f"{name.replace('_', ' ')} must be {describe_type(types[name])}."
        return None


async def edit_parameters(app: App[Any], session: ChatSession, chat: Adjustable) -> None:
    """Let the user edit a conversation's system prompt and parameters."""
    model = session.loaded.model if session.loaded is not None else None
    options = session.generation_options(ChatSettings(think=chat.settings.think))
    is_remote = session.plan is not None and session.plan.remote is not None

    async def save(chosen: Parameters) -> None:
        if chosen.system != chat.system:
            await chat.set_system(chosen.system)
        await chat.set_settings(chosen.settings)
        if chosen.save_as:
            await session.save_preset(chosen.save_as, chosen.system, chosen.settings)

    await app.push_screen_wait(
        ParametersScreen(
            chat.system,
            chat.settings,
            session.settings.presets,
            options.sampling,
            can_think=model is not None and model.can_switch_thinking,
            save=save,
            known=options.sampling_set if is_remote else None,
        )
    )


def _text(value: object) -> str:
    return "" if value is None else f"{value}"
