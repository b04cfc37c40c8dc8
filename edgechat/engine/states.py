"""The states of chats on disk: a file for each, named for its chat."""

from __future__ import annotations

from edgechat import paths


def forget(chat: str) -> None:
    """Remove the state of a chat, if there is one."""
    (paths.cache_dir() / "states" / f"{chat}.state").unlink(missing_ok=True)
