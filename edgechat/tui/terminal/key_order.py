"""Keys on their way to the widget that has the focus.

They go one at a time, each behind all that the one before has led to, so that none overtakes a change of the
focus. And letters that come in one burst are text, whatever has the focus: what a letter is bound to is for a
letter that comes alone.
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

BURST = 0.02
"""Seconds between two letters that no hand has typed; a key that is held down repeats more slowly."""
_PATIENCE = 2.0
"""Seconds that keys wait at most for what the one before leads to."""

Typed = events.Key | events.Paste


class Keys:
    """Hands keys and pastes on. All of it runs in the app's own message pump."""

    def __init__(self, app: App[None], hand_on: Callable[[Typed], Awaitable[None]]) -> None:
        """`hand_on` gives one to the widget that has the focus."""
        self._app = app
        self._hand_on = hand_on
        self._waiting: deque[Typed] = deque()
        self._under_way = 0
        """Keys and changes of the focus that those that wait are behind."""
        self._silence: Timer | None = None
        self._is_over = False
        """Whether no letter has followed those at the front for long enough."""

    async def take(self, event: Typed) -> None:
        """Hand a key on now, or when those before it are through."""
        self._waiting.append(event)
        self._is_over = False
        await self._go_on()

    def hold(self) -> Callable[[], None]:
        """Let keys wait for a change of the focus; call what is returned when that was made."""
        self._under_way += 1
        ended = False

        def end() -> None:
            nonlocal ended
            if not ended:
                ended = True
                patience.cancel()
                self._app.call_later(self._end)  # behind a focus, which waits there too

        patience = asyncio.get_running_loop().call_later(_PATIENCE, end)
        return end

    async def _end(self) -> None:
        self._under_way -= 1
        await self._go_on()

    async def _go_on(self) -> None:
        if self._silence is not None:
            self._silence.stop()
            self._silence = None
        while self._waiting and not self._under_way:
            letters = [] if self._is_editing else self._letters()
            is_text = len({letter.character for letter in letters}) > 1
            if is_text or (isinstance(self._waiting[0], events.Paste) and not self._is_editing):
                if not self._edit():
                    await self._without_a_place(letters)
                    continue
            elif letters and len(letters) == len(self._waiting) and not self._is_over:
                # Behind the letters that the app has got by then, and has not come to.
                ended = partial(self._app.call_later, self._end_of_letters, letters[-1])
                self._silence = self._app.set_timer(BURST, ended)
                return
            elif letters and not self._is_bound(letters[0]):
                self._edit()
            await self._next()

    async def _end_of_letters(self, last: Typed) -> None:
        if self._waiting and self._waiting[-1] is last:
            self._is_over = True
            await self._go_on()

    async def _next(self) -> None:
        event = self._waiting.popleft()
        target: DOMNode = self._app.focused or self._app.screen
        writes = self._is_editing and (isinstance(event, events.Paste) or event.is_printable)
        if not writes:
            self._follow(target)
        await self._hand_on(event)

    def _follow(self, target: DOMNode) -> None:
        """Let keys wait for all that one leads to: a callback goes behind it from widget to widget.

        And once more, behind the messages that it has led to.
        """
        end = self.hold()
        nodes = 2 * target.ancestors_with_self

        def hop(at: int) -> None:
            while at < len(nodes):
                if nodes[at].call_later(hop, at + 1):
                    return
                at += 1
            end()

        # Once the key is on its way, which it is when the app comes to this.
        self._app.call_next(hop, 0)

    @property
    def _is_editing(self) -> bool:
        from edgechat.tui.widgets.line_field import LineField  # the first frame does not wait for it
        from edgechat.tui.widgets.text_area import Area

        return isinstance(self._app.focused, Area | LineField)

    def _letters(self) -> list[events.Key]:
        """Return the letters at the front, as far as each comes hard upon the one before."""
        found: list[events.Key] = []
        for event in self._waiting:
            if not (isinstance(event, events.Key) and event.is_printable):
                break
            if found and event.time - found[-1].time >= BURST:
                break
            found.append(event)
        return found

    def _is_bound(self, letter: events.Key) -> bool:
        """Say whether the letter does something on this screen, or did if it could be done now."""
        chain = self._app.screen._modal_binding_chain
        return any(letter.key in bindings.key_to_bindings for _, bindings in chain)

    def _edit(self) -> bool:
        """Give the focus to where text goes on this screen; False if there is no such place."""
        focus_text = getattr(self._app.screen, "focus_text", None)
        if focus_text is not None:
            focus_text()
        return self._is_editing

    async def _without_a_place(self, letters: list[events.Key]) -> None:
        """Let text begin a search where its first letter does so; else nothing is done with it."""
        if letters and letters[0].key == "slash":
            await self._next()
            return
        for _ in range(max(1, len(letters))):
            self._waiting.popleft()
