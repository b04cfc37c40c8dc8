"""Shell completion of values: names and IDs found on this machine.

Shells evaluate completions, and names come from untrusted sources (files, titles), so any value that would
need quoting is omitted. Errors are ignored, because messages would end up in the middle of the line being
typed. If there are no completions, the shell completes paths.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator

from edgechat.cli.declaring import Completer

VARIABLE = "_EDGECHAT_COMPLETE"
"""Environment variable that a shell sets to request completions. See `shell_completion`."""
# A value that starts with - would be mistaken for an option.
_SAFE_VALUE = re.compile(r"[\w./:@+][\w./:@+-]*")
_UNSAFE_IN_DESCRIPTION = re.compile(r"[^\w ,.;!?/+-]+")
_MOST = 100
"""Maximum number of conversations to list, and maximum length of a description in characters."""
_DRAFTERS = (
    ("auto", "whatever is on this machine and fits"),
    ("none", "no drafting"),
    ("mtp", "layers of the model itself"),
    ("ngram", "n-grams of the conversation"),
)


def _completer(*sources: Callable[[], Iterable[tuple[str, str]]]) -> Completer:
    def complete(incomplete: str) -> list[tuple[str, str]]:
        offered: dict[str, str] = {}
        for source in sources:
            with contextlib.suppress(Exception):
                for value, text in source():
                    if value.startswith(incomplete) and _SAFE_VALUE.fullmatch(value):
                        description = " ".join(_UNSAFE_IN_DESCRIPTION.sub(" ", text).split())
                        offered.setdefault(value, description[:_MOST])
        return list(offered.items())

    return complete


def _local_models() -> Iterator[tuple[str, str]]:
    from edgechat.base.text import mebibytes
    from edgechat.models.local.inventory import inventory

    for model in inventory().models:
        for name in (model.name, *model.other_tags):
            yield name, f"{mebibytes(model.size)}, {model.place.value}"


def _documents() -> Iterator[tuple[str, str]]:
    from edgechat.documents import registry

    for name in registry.names():
        yield name, "documents"


def _files() -> Iterator[tuple[str, str]]:
    for name in sorted(os.listdir()):
        if name.endswith(".gguf"):
            yield name, "in this folder"


def _catalogue() -> Iterator[tuple[str, str]]:
    from edgechat.models.catalogue import catalogue

    for entry in catalogue():
        if entry.repo is not None:  # a model without a repository is shipped with edgechat
            yield entry.name, entry.description


def _chats(*, trashed: bool = False) -> Iterator[tuple[str, str]]:
    from edgechat.base.sqlite_file import open_read_only
    from edgechat.chat.storage import statements
    from edgechat.chat.storage.file import store_path

    with contextlib.closing(open_read_only(store_path(), seconds=0.1)) as db:
        for listed in statements.listed(db, _MOST, trashed=trashed):
            yield listed.prefix, listed.chat.title


def _qualities() -> Iterator[tuple[str, str]]:
    from edgechat.models.quality import QualityClass

    for quality in QualityClass:
        yield quality.label, "or better"


def _quants() -> Iterator[tuple[str, str]]:
    from edgechat.models.quality import quality_class
    from edgechat.quantize.mixtures import LEVELS

    for level in LEVELS:
        quality = quality_class(level)
        yield level, quality.label if quality else ""


def _agents() -> Iterator[tuple[str, str]]:
    from edgechat.cli.agents import AGENTS

    for agent in AGENTS.values():
        yield agent.name, agent.install


def _tool_servers() -> Iterator[tuple[str, str]]:
    from edgechat.tools.config import config_path, read_servers

    for name, server in read_servers(config_path()).items():
        yield name, server.shown


def _remotes() -> Iterator[tuple[str, str]]:
    from edgechat import settings

    for name, server in settings.load().remotes.items():
        yield name, server.url


def _remote_models() -> Iterator[tuple[str, str]]:
    """Yield the models on other servers that have answered before. No server is contacted."""
    from edgechat import settings
    from edgechat.models.remote.measured import measured_speeds

    remotes = settings.load().remotes
    for name in measured_speeds():
        if name.partition("/")[0] in remotes:
            yield name, "on another server"


local_models = _completer(_local_models, _files, _remote_models)
remotes = _completer(_remotes)
documents = _completer(_documents)
tool_servers = _completer(_tool_servers)
agents = _completer(_agents)
catalogue_models = _completer(_catalogue)
all_models = _completer(_local_models, _files, _catalogue)
drafters = _completer(lambda: _DRAFTERS, _local_models)
pulled_drafters = _completer(lambda: _DRAFTERS[:3], _catalogue)
chats = _completer(_chats)
trashed_chats = _completer(lambda: _chats(trashed=True))
quants = _completer(_quants)
qualities = _completer(_qualities)
paths = _completer()
"""Offers no completions, so that the shell completes paths. click's default would repeat the typed text."""
