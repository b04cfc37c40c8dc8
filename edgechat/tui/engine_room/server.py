"""Server: of a model that runs elsewhere, where that is and what its server tells."""

from __future__ import annotations

from typing import ClassVar

from textual.content import Content

from edgechat.base.text import one_line
from edgechat.models.remote.metrics import ServerLoad
from edgechat.models.remote.model import KINDS, HostedModel
from edgechat.tui.engine_room.section import Section, row, wrapped


class ServerSection(Section):
    """The server of a remote engine."""

    TITLE: ClassVar[str] = "Server"
    MEANING: ClassVar[str] = (
        "The model runs on this server, whose cache cannot be seen. Its requests are those of all its users."
    )

    def __init__(self) -> None:
        super().__init__()
        self._model: HostedModel | None = None
        self._load: ServerLoad | None = None

    def show_model(self, model: HostedModel | None) -> None:
        """Show another model."""
        self._model, self._load = model, None
        self.changed()

    def show(self, load: ServerLoad | None) -> None:
        """Show how busy it is."""
        if load != self._load:
            self._load = load
            self.changed()

    def body(self, width: int) -> list[Content]:
        model, load = self._model, self._load
        if model is None:
            return []
        context = f"{model.context:,} tokens" if model.context else ("not told", ".faint")
        lines = [
            row("kind", KINDS[model.kind]),
            row("address", one_line(model.url, 200)),
            row("context", context),
        ]
        if load is None:
            return [*lines, *wrapped("It tells no metrics.", width, ".faint")]
        if load.running is not None:
            waiting = f", {load.waiting} waiting" if load.waiting is not None else ""
            lines.append(row("requests", f"{load.running} running{waiting}"))
        if load.cache_share is not None:
            lines.append(row("KV cache", f"{load.cache_share:.0%} in use"))
        return lines
