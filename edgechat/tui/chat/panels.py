"""Panels for the conversations and the engine room, beside the chat or, on narrow screens, over it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from textual.screen import Screen

from edgechat.engine.types import Finished
from edgechat.tui.chat.prompt.box import PromptBox
from edgechat.tui.chat.views import Status

if TYPE_CHECKING:
    from edgechat.tui.chat.controller import ChatController
    from edgechat.tui.conversations.sidebar import Sidebar
    from edgechat.tui.engine_room.room import EngineRoom

_SIDEBAR = "sidebar"
_REPLIES = 64
"""Number of replies remembered for the engine room until it is opened."""
_ROOMY = 120
"""Minimum screen width, in columns, at which the conversations are shown by default."""


class Panels:
    """Creates each panel on first use, and updates it while it is visible."""

    def __init__(self, screen: Screen[None], controller: ChatController) -> None:
        self._screen = screen
        self._controller = controller
        self._sidebar: Sidebar | None = None
        self._room: EngineRoom | None = None
        self._replies: deque[Finished] = deque(maxlen=_REPLIES)

    # Conversations.

    async def restore(self) -> None:
        """Show the conversations if the screen is wide, unless the user last hid them. Raises StoreError."""
        store = await self._controller.session.store()
        shown = await store.preference(_SIDEBAR)
        roomy = self._screen.size.width >= _ROOMY
        if roomy and (shown == "shown" or (shown is None and await store.headlines(1, 0))):
            await self.show_sidebar()

    async def show_sidebar(self) -> Sidebar:
        if self._sidebar is None:
            from edgechat.tui.conversations.sidebar import Sidebar

            self._sidebar = Sidebar(await self._controller.session.store())
            await self._screen.query_one("#columns").mount(self._sidebar, before=0)
        self._screen.add_class("-listing")
        if self._screen.has_class("-narrow"):
            self._screen.remove_class("-inspecting")
        self.refresh()
        return self._sidebar

    async def toggle_sidebar(self) -> None:
        """Show and focus the conversations, or hide them if they are focused."""
        is_focused = self._sidebar is not None and self._sidebar.has_focus_within
        if is_focused:
            self._hide("-listing")
        else:
            (await self.show_sidebar()).focus_list()
        store = await self._controller.session.store()
        await store.set_preference(_SIDEBAR, "hidden" if is_focused else "shown")

    async def search(self, words: str) -> None:
        (await self.show_sidebar()).search(words)

    async def show_trash(self) -> None:
        """Show and focus the trash in place of the conversations."""
        (await self.show_sidebar()).focus_trash()

    def refresh(self) -> None:
        """Update the list of conversations if it is visible."""
        if self._sidebar is not None and self._screen.has_class("-listing"):
            self._sidebar.show_current(self._controller.shown.id, self._controller.answering)

    # The engine room.

    async def toggle_room(self) -> None:
        screen, controller = self._screen, self._controller
        if screen.has_class("-inspecting"):
            self._hide("-inspecting")
            return
        if self._room is None:
            from edgechat.tui.engine_room.room import EngineRoom

            self._room = EngineRoom()
            self._room.follow(lambda: controller.session.loaded, lambda: controller.shown.id or None)
            self._room.cache.title_of = controller.title_of
            for finished in self._replies:
                self._room.show_reply(finished)
            await screen.query_one("#columns").mount(self._room)
        screen.add_class("-inspecting")
        if screen.has_class("-narrow"):
            screen.remove_class("-listing")
        self.show_model()
        self._room.focus()

    def _hide(self, css_class: str) -> None:
        self._screen.remove_class(css_class)
        self._screen.query_one(PromptBox).focus()

    def uncover(self) -> None:
        """Hide any panels that cover the chat."""
        screen = self._screen
        if screen.has_class("-listing") and screen.has_class("-narrow"):
            self._hide("-listing")
        if screen.has_class("-inspecting") and not screen.has_class("-wide"):
            self._hide("-inspecting")

    def show_model(self) -> None:
        session = self._controller.session
        if self._room is not None:
            engine = session.loaded
            plan = engine.plan if engine is not None else session.plan
            self._room.show_model(plan, engine.model if engine is not None else None)

    def show_reply(self, finished: Finished) -> None:
        self._replies.append(finished)
        if self._room is not None:
            self._room.show_reply(finished)

    def show_speed(self, status: Status) -> None:
        if self._room is not None and status.is_answering and status.speed:
            self._room.show_speed(status.speed)
