"""What the keys do with the current turn of the transcript."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgechat.chat.records import Attachment, Turn
from edgechat.text import one_line, printable

if TYPE_CHECKING:
    from edgechat.tui.chat.screen import ChatScreen


def act(screen: ChatScreen, turn_id: str, what: str) -> None:
    """Do it. `what`: copy, copy_code, edit, regenerate, quote, bring_back, unfold, other(-1), other(1)."""
    turn = screen.talk.turn(turn_id)
    if turn is None:
        return
    match what:
        case "copy":
            _copy(screen, turn.content, "Copied")
        case "copy_code":
            _copy_code(screen, turn)
        case "quote":
            screen.prompt.quote(printable(turn.content))
            screen.prompt.focus()
        case "bring_back":
            _bring_back(screen, turn)
        case "unfold":
            screen.transcript.toggle_thought(turn.id)
        case "other(-1)" | "other(1)":
            screen.tries(_switch(screen, turn, -1 if "-" in what else 1))
        case "edit" | "regenerate" if screen.answering:
            screen.notify("An answer is being written. Escape stops it.", severity="warning")
        case "edit" if turn.role == "user":
            screen.borrow_prompt(turn.content, turn)
        case "regenerate":
            screen.begin(screen.talk.retry(turn.id))
            screen.prompt.focus()


def can(screen: ChatScreen, turn_id: str, what: str) -> bool:
    """Say whether that can be done with the turn."""
    turn = screen.talk.turn(turn_id)
    if turn is None:
        return False
    match what:
        case "edit":
            return turn.role == "user"
        case "bring_back":
            return any(piece.left and piece.turn == turn_id for piece in screen.talk.pieces)
        case "copy_code":
            return "```" in turn.content or "~~~" in turn.content or "    " in turn.content
        case "regenerate":
            return turn.role != "system"
    return True


async def _switch(screen: ChatScreen, turn: Turn, by: int) -> None:
    other = await screen.talk.switch(turn.id, by)
    if other is not None:
        screen.transcript.point_at(other)


def copy_reply(screen: ChatScreen) -> None:
    """Copy the last reply."""
    turns = screen.talk.conversation.turns if screen.talk.conversation is not None else []
    last = next((turn for turn in reversed(turns) if turn.role == "assistant" and turn.content), None)
    if last is None:
        screen.notify("There is no reply to copy yet.")
    else:
        _copy(screen, last.content, "Copied the reply")


def _copy(screen: ChatScreen, text: str, told: str) -> None:
    screen.app.copy_to_clipboard(text)
    screen.notify(told, timeout=1.5)


def _copy_code(screen: ChatScreen, turn: Turn) -> None:
    """Copy the turn's piece of code; of several, with each press, the next one."""
    blocks = code_blocks(turn.content)
    if not blocks:
        screen.notify("There is no code in this turn.")
        return
    before = screen.app.clipboard
    at = (blocks.index(before) + 1) % len(blocks) if before in blocks else 0
    which = f", {at + 1} of {len(blocks)}" if len(blocks) > 1 else ""
    _copy(screen, blocks[at], f"Copied the code{which}")


def code_blocks(text: str) -> list[str]:
    """Return the pieces of code of a Markdown text, without the fences."""
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").parse(text)
    return [token.content for token in tokens if token.type in ("fence", "code_block")]


def _bring_back(screen: ChatScreen, turn: Turn) -> None:
    """Send what was said before along with the next question, for a model that has it no more."""
    conversation = screen.talk.conversation
    assert conversation is not None
    at = conversation.turns.index(turn)
    first = at - 1 if turn.role == "assistant" and at else at
    exchange = [one for one in conversation.turns[first : first + 2] if one.role != "system"]
    speakers = {"user": "You", "assistant": "Answer"}
    text = "\n\n".join(f"{speakers[one.role]}: {one.content}" for one in exchange)
    screen.pane.attach(Attachment(f"earlier: {one_line(exchange[0].content, 30)}", text))
    screen.prompt.focus()
