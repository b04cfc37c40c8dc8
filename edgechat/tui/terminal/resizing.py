"""What every screen of ours does as the terminal gets another size."""

from __future__ import annotations

from typing import Any, cast

from textual import events
from textual.screen import Screen


class StaleResizeFilter:
    """Goes before Screen among a class's bases: leaves sizes aside that are the terminal's no more.

    A screen that lays itself out in another size is told of it. Where two sizes were on their way to a busy
    one, each laid it out anew and sent itself once more, for ever.
    """

    async def _on_resize(self, event: events.Resize) -> None:
        if event.size != cast("Screen[Any]", self).app.size:
            event.stop()
            event.prevent_default()
