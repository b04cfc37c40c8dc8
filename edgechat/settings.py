"""settings.toml: what a person has decided once and for all. Everything may be left out.

    model = "qwen3-4b"
    context = 8192

    [sampling]
    temperature = 0.7

An option on the command line wins over it; where both are silent edgechat chooses by itself.
"""

from __future__ import annotations

import contextlib
import difflib
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from edgechat import paths
from edgechat.errors import SettingsError
from edgechat.text import one_line

S = TypeVar("S", bound=msgspec.Struct)


class SamplingDefaults(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """How a token is chosen, as far as someone has an opinion; the fields of the engine's Sampling."""

    temperature: Annotated[float, Meta(ge=0, le=5)] | None = None
    """0 takes the likeliest token; higher values are more varied."""
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """Choose among this many of the likeliest tokens; 0 among all."""
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Choose among the likeliest tokens that have this probability together; 1 among all."""
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Leave out tokens less likely than this share of the likeliest one's probability; 0 none."""
    repetition_penalty: Annotated[float, Meta(gt=0, le=5)] | None = None
    """Divide the scores of tokens that came lately by this; 1 leaves them as they are."""
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    """Take this off the scores of tokens that came lately, however often."""
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    """Take this off the scores of tokens that came lately, once for each time."""

    def over(self, other: SamplingDefaults) -> SamplingDefaults:
        """Return these values, and those of `other` where there is none here."""
        return SamplingDefaults(**(other.given() | self.given()))

    def given(self) -> dict[str, Any]:
        """Return the values that are there, by name: `Sampling(**defaults.given())`."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What settings.toml may say."""

    model: Annotated[str, Meta(min_length=1)] | None = None
    """The model to start with: a name of the catalogue or the path of a GGUF file."""
    context: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """Tokens that a conversation and its answer may take; a model trained on fewer gets its own length.
    None: the most that fits comfortably, up to 16384."""
    threads: Annotated[int, Meta(ge=1, le=512)] | None = None
    """Threads that compute. None: one for each performance core."""
    draft: Annotated[str, Meta(min_length=1)] | None = None
    """Who guesses the next tokens, so that the model has only to check them: "auto" (as None: the model that
    the catalogue names, where it is here and fits beside, and what was said before), "none", "ngram" (only
    what was said before), or the name or path of a model, where that can draft for the one that is loaded."""
    offline: bool = False
    """Never use the network: only what is on this machine, and what was learnt of the hub before."""
    rpc: tuple[str, ...] = ()
    """Servers of llama.cpp's RPC backend on this machine ("127.0.0.1:50052"), whose devices may take layers.
    Others are refused: the protocol knows no passwords."""
    idle_minutes: Annotated[float, Meta(ge=0)] = 10
    """Minutes without a request after which the model's memory is given back; 0 keeps it."""
    overflow: Literal["window", "error"] = "window"
    """Where a conversation outgrows the context: leave its oldest turns out of what the model is sent (the
    system prompt and the first turn stay), or refuse the question."""
    settle: bool = True
    """Compute between the turns, while nobody waits, what the next one will begin with."""
    settle_on_battery: bool = True
    """... also where the machine runs on its battery."""
    state_gib: Annotated[float, Meta(ge=0, le=2**20)] | None = None
    """GiB of disk for what was computed of conversations, so that they go on at once; 0 keeps nothing there.
    None: 4, or a tenth of what is free if that is less."""
    sampling: SamplingDefaults = SamplingDefaults()
    """Wins over what the catalogue recommends for a model."""


def settings_file() -> Path:
    """Return the path of settings.toml, which need not exist."""
    return paths.config_dir() / "settings.toml"


def load() -> Settings:
    """Return what settings.toml says, or the defaults where there is none. Raises SettingsError."""
    path = settings_file()
    return checked(read_toml(path), Settings, str(path)) if path.exists() else Settings()


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises SettingsError where it cannot be read."""
    try:
        # Some editors begin a file with a byte order mark, which TOML does not know.
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:  # a number of 5000 digits is a ValueError
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise SettingsError(
            f"{path} cannot be read: {one_line(str(why))}.", hint=f"Mend or remove {path}."
        ) from error


def checked(table: dict[str, Any], kind: type[S], where: str, prefix: str = "") -> S:
    """Return `table` as a `kind`. Raises SettingsError that names `where` (the file) and the field."""
    with contextlib.suppress(msgspec.ValidationError):
        return msgspec.convert(table, kind)
    # Field by field, twenty times slower, which tells whose fault it is.
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name not in fields:
            raise _unknown(prefix + name, where, [prefix + known for known in fields])
        values[name] = _value(value, fields[name].type, where, prefix + name)
    for name, field in fields.items():
        if field.required and name not in values:
            raise SettingsError(f"{where}: {prefix}{name} is missing.", hint=f"Add a line {prefix}{name} = …")
    return kind(**values)


def _value(value: Any, kind: Any, where: str, name: str) -> Any:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(value, dict):
        return checked(value, kind, where, f"{name}.")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason = str(error).replace(" | null", "")
        raise SettingsError(
            f"{where}: {name} = {_shown(value)} makes no sense. {reason}.",
            hint=f"Change {name} in {where}, or remove the line.",
        ) from error


def _shown(value: Any) -> str:
    try:
        return one_line(repr(value), 60)
    except ValueError:  # 0xfff…: Python writes no number of so many digits
        return "…"


def _unknown(name: str, where: str, known: list[str]) -> SettingsError:
    shown = one_line(name, 60)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(known)}."
    return SettingsError(f"{where}: there is no field {shown}.", hint=hint)
