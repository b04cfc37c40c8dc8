"""Looking up the address of a host, in a thread that nobody waits for.

asyncio asks the system in threads that it joins when a loop or the program ends: without a network, a list
that gave up after two seconds came after ten.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading


async def has_address(host: str) -> bool:
    """Return whether a host has an address. Cancelling this leaves the question behind."""
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
