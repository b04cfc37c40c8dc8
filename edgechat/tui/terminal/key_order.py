"""Key queue: delivers keys to the focused widget in order.

A key is delivered only once all effects of the previous one are complete, so that no key overtakes a change
of focus. Several characters in one burst are treated as text, whatever has the focus; only a single character
triggers its binding.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from textual import events
from textual.timer import Timer

if TYPE_CHECKING:
    from textual.app import App
    from textual.dom import DOMNode

_BURST = 0.02
"""Characters less than this many seconds apart were not typed: even a held key repeats more slowly."""
_HOLD_TIMEOUT = 2.0
"""Maximum number of seconds to hold keys back until the previous key's effects are complete."""

Typed = events.Key | events.Paste


class KeyQueue:
    """Delivers keys and pastes in order. Runs in the app's message pump."""

    def __init__(self, app: App[None], deliver: Callable[[Typed], Awaitable[None]]) -> None:
        """deliver: passes an event to the focused widget."""
        self._app = app
        self._deliver = deliver
        self._waiting: deque[Typed] = deque()
        self._holds = 0
        """Number of keys and focus changes in progress."""
        self._burst_timer: Timer | None = None
        self._is_burst_over = False
        """Whether the characters at the front of the queue form a complete burst."""

    async def take(self, event: Typed) -> None:
        """Deliver an event once the earlier ones are done."""
        self._waiting.append(event)
        self._is_burst_over = False
        await self._drain()

    def hold(self) -> Callable[[], None]:
        """Hold keys back, for example during a change of focus, until the returned function is called."""
        self._holds += 1
        is_released = False

        def release() -> None:
            nonlocal is_released
            if not is_released:
                is_released = True
                timeout.cancel()
                self._app.call_later(self._release)  # focus changes are queued there too

        timeout = asyncio.get_running_loop().call_later(_HOLD_TIMEOUT, release)
        return release

    async def _release(self) -> None:
        self._holds -= 1
        await self._drain()

    async def _drain(self) -> None:
        if self._burst_timer is not None:
            self._burst_timer.stop()
            self._burst_timer = None
        while self._waiting and not self._holds:
            letters = [] if self._is_editing else self._leading_letters()
            is_text = len({letter.character for letter in letters}) > 1
            if is_text or (isinstance(self._waiting[0], events.Paste) and not self._is_editing):
                if not self._focus_text():
                    await self._start_search_or_drop(letters)
                    continue
            elif letters and len(letters) == len(self._waiting) and not self._is_burst_over:
                # call_later runs it after the characters that the app has received but not yet handled.
                end_burst = partial(self._app.call_later, self._end_burst, letters[-1])
                self._burst_timer = self._app.set_timer(_BURST, end_burst)
                return
            elif letters and not self._is_bound(letters[0]):
                self._focus_text()
            await self._deliver_next()

    async def _end_burst(self, last: Typed) -> None:
        if self._waiting and self._waiting[-1] is last:
            self._is_burst_over = True
            await self._drain()

    async def _deliver_next(self) -> None:
        event = self._waiting.popleft()
        target: DOMNode = self._app.focused or self._app.screen
        is_text = self._is_editing and (isinstance(event, events.Paste) or event.is_printable)
        if not is_text:
            self._hold_for(target)
        await self._deliver(event)

    def _hold_for(self, target: DOMNode) -> None:
        """Hold keys back until all effects of a key sent to `target` are complete.

        A callback follows the key up the widget tree, then follows the messages that the key caused.
        """
        release = self.hold()
        nodes = 2 * target.ancestors_with_self

        def hop(at: int) -> None:
            while at < len(nodes):
                if nodes[at].call_later(hop, at + 1):
                    return
                at += 1
            release()

        # call_next: start only after the key has been sent.
        self._app.call_next(hop, 0)

    @property
    def _is_editing(self) -> bool:
        from textual.command import CommandInput  # not needed for the first frame

        from edgechat.tui.widgets.fields import Area, LineField

        return isinstance(self._app.focused, Area | LineField | CommandInput)

    def _leading_letters(self) -> list[events.Key]:
        """Return the first burst of characters in the queue."""
        letters: list[events.Key] = []
        for event in self._waiting:
            if not (isinstance(event, events.Key) and event.is_printable):
                break
            if letters and event.time - letters[-1].time >= _BURST:
                break
            letters.append(event)
        return letters

    def _is_bound(self, letter: events.Key) -> bool:
        """Return whether a character has a binding on this screen, even a disabled one."""
        chain = self._app.screen._modal_binding_chain
        return any(letter.key in bindings.key_to_bindings for _, bindings in chain)

    def _focus_text(self) -> bool:
        """Focus the text field of this screen; return whether there is one."""
        focus_text = getattr(self._app.screen, "focus_text", None)
        if focus_text is not None:
            focus_text()
        return self._is_editing

    async def _start_search_or_drop(self, letters: list[events.Key]) -> None:
        """Start a search if the burst starts with a slash; otherwise drop it, as there is no text field."""
        if letters and letters[0].key == "slash":
            await self._deliver_next()
            return
        for _ in range(max(1, len(letters))):
            self._waiting.popleft()
