"""Line editor for questions, with history and completion. It takes 0.1 s to import prompt_toolkit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout
from prompt_toolkit.shortcuts import CompleteStyle

from edgechat.base.text import printable
from edgechat.chat.commands import commands_of
from edgechat.cli import completion

_PROMPT, _MORE = ">>> ", "... "
_NAMES = {"model": completion.local_models, "docs": completion.documents, "open": completion.chats}
_WITH_FILES = ("attach", "docs", "export", "image", "import", "lora", "model")


class QuestionPrompt:
    """Reads one question or command at a time. Lines pasted at once count as one question."""

    def __init__(self, asked: Iterable[str]) -> None:
        """asked: past questions, newest first, that can be recalled with the arrow keys or Ctrl+R."""
        self._session: PromptSession[str] = PromptSession(
            _PROMPT,
            multiline=True,
            prompt_continuation=_MORE,
            key_bindings=_keys(),
            # Conversations may have been imported, so their questions are untrusted.
            history=InMemoryHistory(list(map(printable, asked))[::-1]),
            completer=_Commands(),
            complete_style=CompleteStyle.READLINE_LIKE,
            complete_while_typing=False,
            reserve_space_for_menu=0,
            enable_suspend=True,
        )

    def read(self) -> str:
        """Read the next question or command. Raises EOFError on Ctrl+D, KeyboardInterrupt on Ctrl+C."""
        with patch_stdout():  # so that notes are printed above the prompt
            return self._session.prompt()


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline()

    return keys


class _Commands(Completer):
    """Completes commands and their arguments: files, models, documents and conversations."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        typed = document.text_before_cursor
        if not typed.startswith("/") or "\n" in typed:
            return
        name, space, argument = typed[1:].partition(" ")
        if not space:
            names = (command.name for command in commands_of("run") if command.name.startswith(name))
            yield from (Completion(found, -len(name)) for found in names)
            return
        if name in _NAMES:
            yield from (Completion(found, -len(argument)) for found, _ in _NAMES[name](argument))
        if name in _WITH_FILES:
            files = PathCompleter(expanduser=True).get_completions(Document(argument), complete_event)
            yield from (one for one in files if printable(one.text) == one.text and "\n" not in one.text)
