"""Scenes that several transcripts share: homes, models, conversations."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec

from edgechat.base.errors import EngineCrashed
from edgechat.chat.conversation import Conversation
from edgechat.chat.storage.store import Store, store_path
from tests import homes, scripted
from tests.cli.transcripts import World
from tests.fakes import FakeEngine, send, thought
from tests.kit import NOT_PRINTABLE, tiny
from tests.kit.heads import split_head, with_head
from tests.kit.projector_files import projector


def source(kind: str) -> Path:
    """Return a model of the kit, such as `dense` or `dense/Q8_0`; `eyes` and `ears` are projectors."""
    kind, _, weights = kind.partition("/")
    if kind in ("eyes", "ears"):
        return projector(*["gemma4v", "gemma4a"][: 1 + (kind == "ears")])
    if kind in ("headed", "target", "drafter"):
        return with_head("qwen35") if kind == "headed" else getattr(split_head("qwen35"), kind)
    return tiny(kind, mute=NOT_PRINTABLE, **({"weights": weights} if weights else {}))


def model(world: World, path: str, kind: str = "dense") -> Path:
    """Put a model at a path."""
    return homes.place(source(kind), world.folder / path)


def own(world: World, name: str, kind: str = "dense") -> Path:
    """Put a model into edgechat's own folder."""
    return model(world, f"home/data/models/{name}", kind)


def cached(world: World, repo: str, name: str, kind: str = "dense", commit: str = "") -> None:
    """Put a model into huggingface_hub's cache."""
    more: dict[str, Any] = {"commit": commit * 40, "main": False} if commit else {}
    world.names["COMMIT"] = homes.COMMIT
    other = world.folder / kind
    homes.in_hub(world.folder / "user", other if other.exists() else source(kind), repo, name, **more)


def ollama(world: World, tag: str, kind: str = "dense") -> None:
    homes.in_ollama(world.folder / "user", source(kind), tag)


def lm_studio(world: World, name: str, kind: str = "dense") -> None:
    homes.in_lm_studio(world.folder / "user", source(kind), name)


def script(world: World, path: str, fields: str = "{}") -> None:
    """Write a model that replies as the JSON script says."""
    scripted.write(world.folder / path, **json.loads(fields))


def settings(world: World, text: str) -> None:
    """Write settings.toml."""
    file(world, "home/config/settings.toml", f"{text}\n")


def file(world: World, path: str, text: str = "") -> None:
    target = world.folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


def flip(world: World, path: str) -> None:
    """Flip a bit near the end of a file."""
    target = (world.folder / path).resolve()
    data = bytearray(target.read_bytes())
    data[-5] ^= 1
    target.write_bytes(data)


def cut(world: World, path: str, n: str = "1") -> None:
    """Cut bytes off the end of a file."""
    target = (world.folder / path).resolve()
    target.write_bytes(target.read_bytes()[: -int(n)])


def grow(world: World, path: str, size: str) -> None:
    """Extend a file with a hole."""
    os.truncate(world.folder / path, int(size))


def copy(world: World, source: str, target: str) -> None:
    shutil.copytree(world.folder / source, world.folder / target)


def chat(world: World, name: str, *questions: str) -> None:
    """Store a conversation of the app, whose id starts with `name`, a hexadecimal number.

    A question is separated by ` -> ` from its answer, which can start with `(thinks)` or end with `(dies)`.
    Arguments that start with `model:` or `system:` set those.
    """
    options = {"model": "guide"}
    answers: list[tuple[str, list[Any]]] = []
    for question in questions:
        head, _, rest = question.partition(":")
        if head in ("model", "system"):
            options[head] = rest
            continue
        said, _, answer = question.partition(" -> ")
        script: list[Any] = [thought("Hm.")] if answer.startswith("(thinks)") else []
        script.append(answer.removeprefix("(thinks)").removesuffix("(dies)") or "Hello there.")
        script += [EngineCrashed("It died.")] if answer.endswith("(dies)") else []
        answers.append((said, script))

    async def talk() -> None:
        store = await Store.open(store_path())
        conversation = Conversation(store, **options)
        conversation.chat = msgspec.structs.replace(conversation.chat, id=name.ljust(32, "0"))
        engine = FakeEngine(*(script for _, script in answers))
        for said, _ in answers:
            try:
                async for _ in send(conversation, engine, said):
                    pass
            except EngineCrashed:
                pass
        await store.close()

    asyncio.run(talk())


SCENES = (model, own, cached, ollama, lm_studio, script, settings, file, flip, cut, grow, copy, chat)
