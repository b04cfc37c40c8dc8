"""Host lookup in a thread that nobody waits for.

asyncio does this in threads that it joins when a loop or the program ends: without a network, a list that
gave up after two seconds would appear only after ten.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading


async def has_address(host: str) -> bool:
    """Return whether a host has an address. Cancelling this leaves the lookup running."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bool] = loop.create_future()

    def settle(found: bool) -> None:
        if not answer.done():
            answer.set_result(found)

    def ask() -> None:
        try:
            found = bool(socket.getaddrinfo(host, None))
        except (OSError, UnicodeError):
            found = False
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=ask, daemon=True, name="look-up").start()
    return await answer
