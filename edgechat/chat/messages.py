"""From the turns of a chat to what the model is sent."""

from __future__ import annotations

from collections.abc import Sequence

from edgechat.chat.records import Turn
from edgechat.engine.types import Message


def messages_of(turns: Sequence[Turn]) -> tuple[Message, ...]:
    """Return what the model is sent of these turns.

    A reply without words is left out, and turns of the user that thereby meet become one: most templates
    want the roles to alternate.
    """
    messages: list[Message] = []
    for turn in turns:
        if turn.role == "assistant" and not turn.content:
            continue
        if turn.role == "user" and messages and messages[-1].role == "user":
            messages[-1] = Message("user", f"{messages[-1].content}\n\n{turn.content}")
        else:
            messages.append(Message(turn.role, turn.content, turn.thinking))
    return tuple(messages)


def not_sent(turns: int) -> str:
    """Return in words how many turns, questions with answers, have left the window."""
    gone = "1 earlier question, with its answer, is"
    if turns != 1:
        gone = f"{turns} earlier questions, with their answers, are"
    return f"{gone} not sent to the model any more"


def last_branch(turns: Sequence[Turn]) -> list[Turn]:
    """Return the line of turns that leads to the one written last."""
    by_id = {turn.id: turn for turn in turns}
    branch: list[Turn] = []
    turn = turns[-1] if turns else None
    while turn is not None:
        branch.append(turn)
        turn = by_id.get(turn.parent_id) if turn.parent_id else None
    return branch[::-1]
