"""The commands, as a group that notices where a model was named in the place of one."""

from __future__ import annotations

import os
import shlex
from typing import Any

from typer.core import TyperGroup


class Commands(TyperGroup):
    """Tells who types `edgechat guide` what to type instead."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See click."""
        if self.get_command(ctx, args[0]) is None and _is_model(args[0]):
            from edgechat.text import one_line

            words = ["run", *args] if len(args) > 1 else ["--model", *args]
            meant = one_line(shlex.join(["edgechat", *words]))
            ctx.fail(f"No such command {args[0]!r}. Did you mean: {meant}")
        return super().resolve_command(ctx, args)


def _is_model(word: str) -> bool:
    if word.endswith(".gguf") or os.path.isfile(word):
        return True
    from edgechat.errors import EdgechatError
    from edgechat.models.library import entry_of, here

    try:
        return entry_of(word) is not None or bool(here(word))
    except EdgechatError:
        return False
