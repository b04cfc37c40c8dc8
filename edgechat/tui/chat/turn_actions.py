"""The actions on a turn of the transcript."""

from __future__ import annotations

from edgechat.base.errors import ChatBusy, ChatNotFound, EdgechatError
from edgechat.base.text import one_line, printable
from edgechat.chat.attachments import cited, passages_in
from edgechat.chat.records import Attachment, Turn
from edgechat.tui.chat.controller import ChatController


def act(controller: ChatController, turn_id: str, what: str) -> None:
    """Run an action on a turn; an error is shown.

    what: copy, copy_code, edit, regenerate, regenerate_with, continue, quote, bring_back, passages, unfold,
    other(-1), other(1), compare.
    """
    turn, view = controller.shown.turn(turn_id), controller.view
    if turn is None:
        return
    try:
        match what:
            case "copy":
                _copy(controller, turn.content, "Copied")
            case "copy_code":
                _copy_code(controller, turn)
            case "quote":
                view.pane.quote(printable(turn.content))
                view.pane.take_focus()
            case "bring_back":
                _bring_back(controller, turn)
            case "passages":
                _show_passages(controller, turn)
            case "unfold" if turn.role == "assistant" and not (turn.thinking or turn.rounds):
                if passages := _cited(controller, turn):
                    view.show_passages(passages)
            case "unfold":
                view.toggle_thought(turn.id)
            case "other(-1)" | "other(1)":
                view.run_in_background(_switch(controller, turn, -1 if "-" in what else 1))
            case "edit" if turn.role == "user":
                if controller.shown.is_answering:
                    raise ChatBusy("An answer is being generated.", hint="Stop it first: Escape.")
                controller.replace_prompt(turn.content, turn)
            case "regenerate":
                controller.retry(turn.id)
                view.pane.take_focus()
            case "regenerate_with":
                view.run_in_background(_regenerate_with(controller, turn))
            case "compare":
                view.run_in_background(_compare(controller, turn))
            case "continue":
                controller.continue_reply()
                view.pane.take_focus()
    except EdgechatError as error:
        view.show_error(error)


def can(controller: ChatController, turn_id: str, what: str) -> bool:
    """Return whether an action can be run on a turn."""
    shown = controller.shown
    turn = shown.turn(turn_id)
    if turn is None:
        return False
    match what:
        case "edit":
            return turn.role == "user"
        case "bring_back":
            return shown.conversation is not None and turn in shown.conversation.left_out()
        case "passages":
            return any(file.source is not None for turn in shown.turns for file in turn.attachments)
        case "copy_code":
            return "```" in turn.content or "~~~" in turn.content or "    " in turn.content
        case "continue":
            return shown.can_continue and turn is shown.turns[-1]
        case "compare":
            return shown.conversation is not None and shown.conversation.branches(turn.id)[1] > 1
        case "regenerate" | "regenerate_with":
            return turn.role != "system"
    return True


async def _switch(controller: ChatController, turn: Turn, by: int) -> None:
    other = await controller.shown.switch(turn.id, by)
    if other is not None:
        controller.view.point_at(other)


async def _regenerate_with(controller: ChatController, turn: Turn) -> None:
    """Let the user choose another model, which answers again, and goes on answering."""
    controller.check_can_retry()
    models = await controller.downloads.find_names(remote=False)
    if not models:
        raise ChatNotFound("There is no other model on this machine.", hint="Ctrl+O downloads one.")
    chosen = await controller.view.choose_model("Answer again with", models)
    if chosen is not None:
        await controller.retry_with(chosen, turn.id)
        controller.view.pane.take_focus()


async def _compare(controller: ChatController, turn: Turn) -> None:
    shown = controller.shown
    if shown.conversation is None:
        return
    at, _ = shown.conversation.branches(turn.id)
    chosen = await controller.view.compare(shown.conversation.versions(turn.id), at)
    if chosen is not None and chosen != at:
        await _switch(controller, turn, chosen - at)


def _show_passages(controller: ChatController, turn: Turn) -> None:
    """Show the passages that a question was sent with, or that a reply cites. Raises ChatNotFound."""
    is_reply = turn.role == "assistant"
    passages = _cited(controller, turn) if is_reply else list(passages_in([turn]).values())
    if not passages:
        raise ChatNotFound("There is no passage of a document in this turn.")
    controller.view.show_passages(passages)


def _cited(controller: ChatController, turn: Turn) -> list[Attachment]:
    turns = controller.shown.turns
    return cited(turn.content, passages_in(turns[: turns.index(turn)]).values())


def copy_reply(controller: ChatController) -> None:
    """Copy the last reply. Raises ChatNotFound if there is none."""
    replies = [turn for turn in controller.shown.turns if turn.role == "assistant" and turn.content]
    if not replies:
        raise ChatNotFound("There is no reply to copy yet.")
    _copy(controller, replies[-1].content, "Copied the reply")


def _copy(controller: ChatController, text: str, message: str) -> None:
    controller.view.copy(text)
    controller.view.show_message(message, seconds=1.5)


def _copy_code(controller: ChatController, turn: Turn) -> None:
    """Copy the turn's block of code; if there are several, the one after the last copied."""
    blocks = code_blocks(turn.content)
    if not blocks:
        raise ChatNotFound("There is no code in this turn.")
    before = controller.view.clipboard
    at = (blocks.index(before) + 1) % len(blocks) if before in blocks else 0
    which = f", {at + 1} of {len(blocks)}" if len(blocks) > 1 else ""
    _copy(controller, blocks[at], f"Copied the code{which}")


def code_blocks(text: str) -> list[str]:
    """Return the blocks of code of a Markdown text, without the fences."""
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").parse(text)
    return [token.content for token in tokens if token.type in ("fence", "code_block")]


def _bring_back(controller: ChatController, turn: Turn) -> None:
    """Attach an earlier question and answer, which the model is not sent any more, to the next question."""
    turns = controller.shown.turns
    index = turns.index(turn)
    first = index - 1 if turn.role == "assistant" and index else index
    exchange = [turn for turn in turns[first : first + 2] if turn.role != "system"]
    speakers = {"user": "You", "assistant": "Answer"}
    text = "\n\n".join(f"{speakers[turn.role]}: {turn.content}" for turn in exchange)
    pane = controller.view.pane
    pane.attach(Attachment(f"earlier: {one_line(exchange[0].content, 30)}", text))
    for image in exchange[0].images:
        pane.attach(image)
    controller.view.pane.take_focus()
