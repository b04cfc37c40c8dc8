"""What the settings screen lists: the fields of the settings, and those of each preset."""

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
"""With what a value is changed: by going through all there are, in a line, in a box of lines."""

_KEEPS = "the chat's own"
_COUNTS = {
    "now": "",
    "new chat": "Applies to new chats.",
    "load": "Applies when a model is loaded next.",
    "start": "Applies when edgechat is started next.",
}


@dataclass(frozen=True, slots=True)
class SettingEntry:
    """One setting, or one field of a preset."""

    path: tuple[str, ...]
    """Where it is in the file: ('sampling', 'top_p')."""
    heading: str
    """What it is listed under: 'Sampling', 'Preset coder'."""
    default: str
    doc: str
    counts: str
    """From when on a change counts, as a sentence; empty for at once."""
    type: Any

    @property
    def label(self) -> str:
        """Its name where its heading is known."""
        return self.path[-1]

    @property
    def kind(self) -> str:
        """What it may be, in words."""
        return describe_type(self.type)

    @property
    def told(self) -> str:
        """What it does, what it may be, and when it counts."""
        kind = self.kind
        may_be = "" if kind in ("text", "on or off") else f"{kind[0].upper()}{kind[1:]}."
        return " ".join(filter(None, (self.doc, may_be, self.counts)))

    @property
    def choices(self) -> tuple[Any, ...]:
        """All that it may be, if that is little; None among them leaves the choice to edgechat."""
        plain = stripped(self.type)
        options = tuple(literals(plain)) or ((True, False) if bool in (plain, *_parts(plain)) else ())
        return (None, *options) if options and type(None) in _parts(plain) else options

    @property
    def editor(self) -> Editor:
        """With what it is changed."""
        if self.choices:
            return "choice"
        return "text" if self.label == "system" else "line"

    def given(self, tables: Mapping[str, Any]) -> Any:
        """Return what the file says, or None."""
        found: Any = tables
        for part in self.path:
            found = found.get(part) if isinstance(found, Mapping) else None
        return found

    def shown(self, value: Any) -> str:
        """Return a value of the file in words."""
        return one_line(format_value(tuple(map(str, value)) if isinstance(value, list) else value), 200)

    def parsed(self, text: str) -> Any:
        """Return what was typed as a value; None for nothing. Raises ValueError that says what it may be."""
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
            longest = f"text of at most {SYSTEM_LENGTH} characters" if self.kind == "text" else self.kind
            raise ValueError(f"Allowed: {longest}.") from error

    def matches(self, words: list[str]) -> bool:
        """Whether all these words, in small letters, are in what is shown of it."""
        text = f"{self.heading} {'.'.join(self.path)} {self.doc} {self.kind}".lower()
        return all(word in text for word in words)


def entries(said: Settings) -> Iterator[SettingEntry]:
    """Yield what is listed, heading by heading."""
    known = documented()
    for group in ("Model", "Conversation", "Sampling", "Appearance", "Machine"):
        for one in known:
            if one.group == group:
                path = tuple(one.name.split("."))
                yield SettingEntry(path, group, one.default, one.doc, _COUNTS[one.applies_from], one.type)
    for name in said.presets:
        yield from _of_preset(name, known)


def _of_preset(name: str, known: tuple[Documented, ...]) -> Iterator[SettingEntry]:
    docs = {one.name: one for one in known}
    for field in msgspec.structs.fields(Preset):
        inner = [one for one in known if one.name.startswith(f"{field.name}.")]
        for one in inner or [docs[field.name]]:
            path = ("presets", name, *one.name.split("."))
            doc = "The preset's system prompt." if one.name == "system" else one.doc
            yield SettingEntry(path, f"Preset {name}", _KEEPS, doc, "", one.type)


def _parts(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (Union, UnionType) else ()
