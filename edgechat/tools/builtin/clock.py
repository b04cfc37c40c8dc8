"""The date and the time."""

from __future__ import annotations

from datetime import datetime

import msgspec

from edgechat.tools.builtin.group import BuiltInGroup, BuiltInTool


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No arguments."""


def clock() -> BuiltInGroup:
    """Return the tool that says what day it is."""

    async def run(_wanted: Nothing) -> str:
        now = datetime.now().astimezone()
        return now.strftime("%A, %Y-%m-%d %H:%M:%S %z (%Z)")

    description = "Returns today's date, the day of the week and the time of day, where the user is."
    return BuiltInGroup("date", BuiltInTool("current_date", description, Nothing, run, harmless=True))
