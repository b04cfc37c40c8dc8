"""The entries of the settings screen: the fields of the settings, and those of each preset."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, Union

import msgspec

from edgechat.base.text import one_line
from edgechat.settings import Documented, Preset, Settings, documented
from edgechat.settings.documentation import describe_type, format_value
from edgechat.settings.fields import SYSTEM_LENGTH
from edgechat.settings.reading import checked_value, literals, stripped

Editor = Literal["choice", "line", "text"]
"""How a value is edited: by stepping through the allowed values, in one line, in several lines."""

_PRESET_DEFAULT = "the chat's own"
_APPLIES = {
    "now": "",
    "new chat": "Applies to new chats.",
    "load": "Applies when a model is loaded next.",
    "start": "Applies when edgechat is started next.",
}


@dataclass(frozen=True, slots=True)
class SettingEntry:
    """One setting, or one field of a preset."""

    path: tuple[str, ...]
    """The keys of the file that lead to it: ('sampling', 'top_p')."""
    heading: str
    """The group that it is listed in: 'Sampling', 'Preset coder'."""
    default: str
    doc: str
    applies: str
    """When a change applies, as a sentence; empty for at once."""
    type: Any

    @property
    def label(self) -> str:
        """Its name below its heading."""
        return self.path[-1]

    @property
    def kind(self) -> str:
        """The allowed values, for users."""
        return describe_type(self.type)

    @property
    def description(self) -> str:
        """What it does, the allowed values, and when a change applies."""
        kind = self.kind
        allowed = "" if kind in ("text", "on or off") else f"Allowed: {kind}."
        return " ".join(filter(None, (self.doc, allowed, self.applies)))

    @property
    def choices(self) -> tuple[Any, ...]:
        """The allowed values, if they are few; None among them leaves the choice to edgechat."""
        plain = stripped(self.type)
        options = tuple(literals(plain)) or ((True, False) if bool in (plain, *_parts(plain)) else ())
        return (None, *options) if options and type(None) in _parts(plain) else options

    @property
    def editor(self) -> Editor:
        if self.choices:
            return "choice"
        return "text" if self.label == "system" or self.path[0] == "prompts" else "line"

    def value_in(self, tables: Mapping[str, Any]) -> Any:
        """Return its value in the file, or None."""
        value: Any = tables
        for key in self.path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def format(self, value: Any) -> str:
        """Return a value of the file as text."""
        return one_line(format_value(tuple(map(str, value)) if isinstance(value, list) else value), 200)

    def parse(self, text: str) -> Any:
        """Return the value that was typed; None for nothing. Raises ValueError with the allowed values."""
        text = text.strip()
        if not text:
            return None
        kinds = (stripped(self.type), *map(stripped, _parts(stripped(self.type))))
        value: Any = text
        try:
            if int in kinds:
                value = int(text)
            elif float in kinds:
                value = float(text)
            elif any(typing.get_origin(kind) is tuple for kind in kinds):
                value = [part.strip() for part in text.split(",") if part.strip()]
            return msgspec.to_builtins(checked_value(value, self.type))
        except ValueError as error:
            allowed = f"text of at most {SYSTEM_LENGTH} characters" if self.kind == "text" else self.kind
            raise ValueError(f"Allowed: {allowed}.") from error

    def matches(self, words: list[str]) -> bool:
        """Return whether all these words, in lower case, occur in the entry."""
        text = f"{self.heading} {'.'.join(self.path)} {self.doc} {self.kind}".lower()
        return all(word in text for word in words)


def entries(settings: Settings) -> Iterator[SettingEntry]:
    """Yield the entries, group by group."""
    fields = documented()
    for group in ("Model", "Conversation", "Sampling", "Appearance", "Machine"):
        for field in fields:
            if field.group == group:
                path = tuple(field.name.split("."))
                yield SettingEntry(
                    path, group, field.default, field.doc, _APPLIES[field.applies_from], field.type
                )
    for name in settings.presets:
        yield from _preset_entries(name, fields)
    about = next(field for field in fields if field.name == "prompts")
    _, text_type = typing.get_args(stripped(about.type))
    for name in settings.prompts:
        yield SettingEntry(("prompts", name), "Prompts", "none", about.doc, "", text_type)


def _preset_entries(preset: str, fields: tuple[Documented, ...]) -> Iterator[SettingEntry]:
    for name in Preset.__struct_fields__:
        for field in fields:
            if field.name != name and not field.name.startswith(f"{name}."):
                continue
            path = ("presets", preset, *field.name.split("."))
            doc = "The preset's system prompt." if field.name == "system" else field.doc
            yield SettingEntry(path, f"Preset {preset}", _PRESET_DEFAULT, doc, "", field.type)


def _parts(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (Union, UnionType) else ()
