"""System messages in the middle of a chat, for templates that accept them only at the beginning."""

import pytest

from edgechat.engine.tool_calls.history import with_rules_first
from edgechat.engine.types import Message


def chat(text):
    """Return the messages of a text: the first letter of the role, and the content, each."""
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [Message(roles[one[0]], one[2:].replace("+", "\n\n")) for one in text.split()]


@pytest.mark.parametrize(
    ("said", "result"),
    [
        ("s:a s:b u:c", "s:a s:b u:c"),
        ("u:a s:b", "u:a+b"),
        ("u:a s:b u:c", "u:a+b+c"),
        ("u:a a:b s:c", "u:a a:b u:c"),
        ("a:a s:b s:c u:d u:e", "a:a u:b+c+d u:e"),
        ("t:a s:b a:c", "t:a+b a:c"),
    ],
)
def test_they_are_said_by_the_user(said, result):
    assert with_rules_first(chat(said)) == chat(result)
