"""Intents for everything that has a name: the answers are the program's own text, the questions use the name.

command:pull     what a command does            options:pull     a command's options
option:--grace   an option of any command       slash:export     a command in the prompt
setting:context  a field in settings.toml       key:ctrl+n       what a key does in each part of the app
keys:The models  the keys in a part of the app  env:HF_TOKEN     an environment variable
model:qwen3-8b   a model in the catalogue       machine:16       what the planner chose for that much memory
unknown:option   names that do not exist, one intent for each kind
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from product import EVERYWHERE, NAME, Command, Product, listed

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"

WEIGHTS = {
    "command": 0.8, "options": 0.4, "option": 0.35, "slash": 0.45, "setting": 0.45, "key": 0.45, "keys": 0.4,
    "env": 0.35, "model": 0.35, "machine": 1.0, "unknown": 1.5,
}  # fmt: skip
"""How often each kind is asked about, relative to a handwritten intent (1)."""


@dataclass(frozen=True, slots=True)
class Named:
    """An intent generated from a name: its answer, and the patterns that use the name to ask for it."""

    name: str
    answer: str
    ask: tuple[str, ...]

    @property
    def weight(self) -> float:
        """How often it is asked about, relative to a handwritten intent."""
        return WEIGHTS[self.name.partition(":")[0]]


def named(product: Product) -> Iterator[Named]:
    """Yield an intent for everything in the product that has a name."""
    yield from _commands(product)
    yield from _options(product)
    for one in product.slashes.values():
        yield Named(
            f"slash:{one.name}",
            f"`{one.usage}` in the prompt: {_sentence(one.description)}",
            _ways("slash", one.name),
        )
    for one in product.settings.values():
        unset = f" Left out: {one.default}."
        yield Named(
            f"setting:{one.name}",
            f"The setting `{one.name}`: {_sentence(one.doc)}{unset}",
            _ways("setting", _spoken(one.name)),
        )
    yield from _keys(product)
    for name, text in product.environment.items():
        yield Named(
            f"env:{name}", f"The environment variable `{name}`: {_sentence(text)}", _ways("env", name)
        )
    for one in product.models.values():
        answer = f"`{one.name}`: {_sentence(one.description)} `{NAME} pull {one.name}` downloads it."
        yield Named(f"model:{one.name}", answer, _ways("model", _spoken(one.name)))
    yield from _machines()
    yield from _unknown(product)


def lists(product: Product) -> dict[str, str]:
    """Return the lists that answers can include: `{commands}` and the like."""
    return {
        "commands": listed(f"`{NAME} {words}`" for words in product.commands if words and " " not in words),
        "slashes": listed(f"`/{name}`" for name in product.slashes),
        "settings": listed(f"`{name}`" for name in product.settings if "." not in name),
        "sampling": listed(f"`{name.partition('.')[2]}`" for name in product.settings if "." in name),
        "models": listed(f"`{name}`" for name in product.models),
    }  # fmt: skip


def _commands(product: Product) -> Iterator[Named]:
    for words, one in product.commands.items():
        if words:
            answer = f"`{one.usage}`: {_sentence(one.text)}"
            yield Named(f"command:{words}", answer, _ways("command", words, one))
        names = [f"`{option.name}`" for option in one.options if option.name not in EVERYWHERE]
        if len(names) > 1:
            answer = f"Options of `{one.line}`: {listed(names)}. `{one.line} --help` explains them."
            yield Named(f"options:{words}".rstrip(":"), answer, _ways("options", words, one))


def _options(product: Product) -> Iterator[Named]:
    for name, commands in product.options.items():
        option = commands[0].option(name)
        assert option is not None
        usage = " ".join(filter(None, (name, option.value)))
        where = "every command" if name in EVERYWHERE else listed([f"`{one.line}`" for one in commands])
        short = "".join(f", `{one}` in short," for one in option.names if not one.startswith("--"))
        other = "".join(
            f" Its contrary is `{one}`." for one in option.names if one.startswith("--") and one != name
        )
        answer = f"`{usage}`{short} of {where}: {_sentence(option.text)}{other}"
        said = "|".join(sorted(option.names, key=len, reverse=True)) if len(option.names) > 1 else name
        yield Named(
            f"option:{name}", answer, _ways("option", f"({said})" if "|" in said else name, *commands)
        )


def _keys(product: Product) -> Iterator[Named]:
    by_part: dict[str, dict[str, list[str]]] = {}
    by_key: dict[str, dict[str, list[str]]] = {}
    for one in product.keys:
        does = by_part.setdefault(one.part, {}).setdefault(one.text, [])
        if one.words not in does:
            does.append(one.words)
        told = by_key.setdefault(one.words, {}).setdefault(one.part, [])
        if one.text not in told:
            told.append(one.text)
    for key, told in by_key.items():
        if len(key) > 1:  # single letters only work in lists, whose intents cover them
            places = "; ".join(f"{_within(part)}: {', '.join(texts)}" for part, texts in told.items())
            yield Named(f"key:{key.lower().replace(' ', '')}", f"{key} {places}.", _ways("key", _typed(key)))
    for part, does in by_part.items():
        keys = "; ".join(f"{', '.join(keys)}: {text}" for text, keys in does.items())
        spoken = part.lower() if part != "Everywhere" else "the whole app"
        yield Named(f"keys:{part}", f"Keys {_within(part)}: {keys}.", _ways("keys", spoken))


def _within(part: str) -> str:
    return "everywhere" if part == "Everywhere" else f"in {part[0].lower()}{part[1:]}"


def _machines() -> Iterator[Named]:
    for one in toml("corpus/machines.toml")["machine"]:
        has = (
            f"a GPU of {one['vram']} GB and {one['ram']} GB of memory"
            if "vram" in one
            else f"{one['ram']} GB of memory and no GPU"
        )
        answer = (
            f"For {has} the planner chooses {one['model']} in {one['quant']}: `{NAME} pull {one['model']}`. "
            f"`{NAME} plan` does so for your machine."
        )
        yield Named(f"machine:gpu{one['vram']}" if "vram" in one else f"machine:{one['ram']}", answer, ())


def _unknown(product: Product) -> Iterator[Named]:
    """Yield intents for names that do not exist here: from other programs, or made up."""
    others = toml("corpus/others.toml")
    ours = {
        "option": product.option_names,
        "command": {word for words in product.commands for word in words.split()},
        "slash": set(product.slashes),
        "key": {key.lower() for key in product.key_names},
        "setting": {_bare(name) for name in product.settings},
        "env": set(product.environment),
        "model": {name for one in product.models.values() for name in (one.name, *one.aliases)},
    }
    made_up = {"option": "--{madeup}", "command": "{madeup}", "slash": "{madeup}", "setting": "{madeup}"}
    for kind, answer in toml("corpus/names.toml")["unknown"].items():
        names = [name for name in others[kind] if name not in ours[kind]]
        if kind == "key":
            names = [_typed(name)[1:-1] for name in names]
        elif kind in ("setting", "model"):
            names = [_spoken(name) for name in names]
        said = f"({'|'.join(names)})"
        if kind in made_up:
            said = f"({said}|{made_up[kind]})"
        commands = list(product.commands.values()) if kind == "option" else [Command(said, (), "", ())]
        yield Named(f"unknown:{kind}", answer, _ways(kind, said, *commands))


def _ways(kind: str, name: str, *commands: Command) -> tuple[str, ...]:
    """Return the patterns for a kind of thing, with a name and its commands filled in."""
    spoken: dict[str, None] = {}
    for one in commands:
        spoken[one.line] = None
        # On their own, words such as "list" and "run" are too common.
        if " " in one.words or (len(one.words) > 4 and kind != "command"):
            spoken[one.words] = None
    of = f"({'|'.join(spoken) or NAME})"
    return tuple(line.replace("NAME", name).replace("{OF}", of) for line in forms()[kind])


@cache
def forms() -> dict[str, tuple[str, ...]]:
    """Return the patterns for asking about a thing, keyed by its kind."""
    return {
        kind: tuple(text.strip().splitlines()) for kind, text in toml("corpus/names.toml")["forms"].items()
    }


def toml(name: str) -> dict[str, Any]:
    """Return the contents of a TOML file in this folder."""
    return tomllib.loads((HERE / name).read_text(encoding="utf-8"))


def _typed(key: str) -> str:
    """Return a pattern for the ways to type a key: (Ctrl+N|ctrl+n|ctrl n|ctrl-n|control n)."""
    ways = [key, key.lower()]
    if key in ("Up", "Down", "Left", "Right"):
        ways = [f"arrow {key.lower()}", f"{key.lower()} arrow", f"the arrow {key.lower()}", f"Arrow {key}"]
    if "+" in key:
        ways += [key.lower().replace("+", joint) for joint in (" ", "-")]
        ways += [key.lower().replace("ctrl", "control").replace("+", " ")] if "Ctrl" in key else []
    if key == "Escape":
        ways += ["esc", "Esc"]
    return f"({'|'.join(dict.fromkeys(ways))})"


def _spoken(name: str) -> str:
    """Return a pattern for the ways to type a name: (idle_minutes|idle minutes)."""
    ways = [name, re.sub(r"[_.-]", " ", name)]
    if re.match(r"[a-z]+\d", name):
        ways.append(re.sub(r"^([a-z]+)(\d)", r"\1 \2", re.sub(r"-", " ", name)))
    return f"({'|'.join(dict.fromkeys(ways))})" if len(set(ways)) > 1 else name


def _bare(name: str) -> str:
    return name.rpartition(".")[2]


def _sentence(text: str) -> str:
    """Return a text ready to end an answer: in ASCII, with a full stop."""
    text = (
        text.replace("\N{HORIZONTAL ELLIPSIS}", "...").replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").strip()
    )
    return text if text[-1] in ".!?" else f"{text}."
