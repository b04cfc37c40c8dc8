"""The {variables} of saved prompts."""

from edgechat.tui.chat.prompt.box import next_variable, variables_in


def test_what_is_a_variable():
    text = "To {language}: {the text}, not {}, {1}, {a: 2} or {x.y}"
    assert variables_in([text, "{other}"]) == {"{language}", "{the text}", "{other}"}


def test_the_next_one_comes_after_the_cursor_then_from_the_beginning():
    text = "{a} and {b} and {c}"
    names = {"{a}", "{b}"}
    assert next_variable(text, names, 0) == (0, 3)
    assert next_variable(text, names, 3) == (8, 11)
    assert next_variable(text, names, 11) == (0, 3)
    assert next_variable("{c}", names, 0) is None
