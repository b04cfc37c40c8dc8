"""What a shell offers after Tab in place of a value: names and ids, from this machine alone.

Shells put it into what they evaluate, and names come from strangers (a file, a title): what would need
quoting is not offered. Nothing here fails, since whatever is printed would land in the line that someone is
typing. Where nothing is offered the shell completes paths.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator

# One that began with - would land as an option.
_PLAIN = re.compile(r"[\w./:@+][\w./:@+-]*")
_UNSPOKEN = re.compile(r"[^\w ,.;!?/+-]+")
_LISTED = 100


def hurry() -> None:
    """Where a shell waits for us, keep typer from importing rich for markup that we have not."""
    if "_EDGECHAT_COMPLETE" in os.environ:
        sys.modules["rich"] = None  # type: ignore[assignment]  # Python then finds none


def local_models(incomplete: str) -> list[tuple[str, str]]:
    """Offer the models on this machine, and GGUF files in the folder."""
    return _offered(incomplete, _here, _files)


def catalogue_models(incomplete: str) -> list[tuple[str, str]]:
    """Offer the catalogue, which `edgechat pull` brings."""
    return _offered(incomplete, _catalogue)


def all_models(incomplete: str) -> list[tuple[str, str]]:
    """Offer what is here and what could be."""
    return _offered(incomplete, _here, _files, _catalogue)


def drafters(incomplete: str) -> list[tuple[str, str]]:
    """Offer who can guess ahead."""
    return _offered(incomplete, _ways_of_drafting, _here)


def pulled_drafters(incomplete: str) -> list[tuple[str, str]]:
    """Offer the draft models that can be pulled beside a model."""
    return _offered(incomplete, lambda: list(_ways_of_drafting())[:2], _catalogue)


def chats(incomplete: str) -> list[tuple[str, str]]:
    """Offer the ids of the conversations, the latest first, with their titles."""
    return _offered(incomplete, _chats)


def trashed_chats(incomplete: str) -> list[tuple[str, str]]:
    """Offer the ids of the conversations in the trash, the one deleted last first, with their titles."""
    return _offered(incomplete, lambda: _chats(trashed=True))


def qualities(incomplete: str) -> list[tuple[str, str]]:
    """Offer the classes of quality."""
    return _offered(incomplete, _qualities)


def paths(incomplete: str) -> list[tuple[str, str]]:
    """Offer nothing, so that the shell completes paths; else it would be given back what was typed."""
    return []


def _offered(incomplete: str, *sources: Callable[[], Iterable[tuple[str, str]]]) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for source in sources:
        with contextlib.suppress(Exception):
            for value, text in source():
                if value.startswith(incomplete) and _PLAIN.fullmatch(value):
                    found.setdefault(value, " ".join(_UNSPOKEN.sub(" ", text).split())[:_LISTED])
    return list(found.items())


def _here() -> Iterator[tuple[str, str]]:
    from edgechat.base.text import mebibytes
    from edgechat.models.local.inventory import inventory

    for one in inventory().models:
        yield one.name, f"{mebibytes(one.size)}, {one.place.value}"


def _files() -> Iterator[tuple[str, str]]:
    for name in sorted(os.listdir()):
        if name.endswith(".gguf"):
            yield name, "in this folder"


def _catalogue() -> Iterator[tuple[str, str]]:
    from edgechat.models.catalogue import catalogue

    for entry in catalogue():
        if entry.repo is None:  # it comes with edgechat
            continue
        yield entry.name, entry.description


def _ways_of_drafting() -> Iterator[tuple[str, str]]:
    yield "auto", "whatever is on this machine and fits"
    yield "none", "nobody"
    yield "ngram", "n-grams of the conversation"


def _chats(*, trashed: bool = False) -> Iterator[tuple[str, str]]:
    import sqlite3

    from edgechat.chat.storage import lists
    from edgechat.chat.storage.store import store_path

    with contextlib.closing(sqlite3.connect(f"{store_path().as_uri()}?mode=ro", uri=True, timeout=0.1)) as db:
        for one in lists.listed(db, _LISTED, trashed=trashed):
            yield one.prefix, one.chat.title


def _qualities() -> Iterator[tuple[str, str]]:
    from edgechat.models.quality import QualityClass

    for one in QualityClass:
        yield one.label, "or better"
