from __future__ import annotations

import pytest

from edgechat.chat.commands import parsed, sent


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/help", ("help", "")),
        ("/Model  guide 2 \n", ("model", "guide 2")),
        ("/save-preset of\nmine", ("save-preset", "of\nmine")),
        ("/system\nBe brief.", ("system", "Be brief.")),
    ],
)
def test_a_word_after_a_stroke_is_a_command(text: str, found: tuple[str, str]) -> None:
    assert parsed(text) == found


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("//help me", "/help me"),
        ("//etc", "/etc"),
        (" /help", " /help"),
        ("/usr/bin/x is what?", "/usr/bin/x is what?"),
        ("/etc/", "/etc/"),
        ("// a comment", "// a comment"),
        ("//a/b", "//a/b"),
        ("/7", "/7"),
        ("/", "/"),
        ("", ""),
        ("Either /or", "Either /or"),
    ],
)
def test_what_is_no_command_is_sent(text: str, question: str) -> None:
    assert parsed(text) is None
    assert sent(text) == question
