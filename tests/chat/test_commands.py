import pytest

from edgechat.base.errors import CommandError
from edgechat.chat.commands import COMMANDS, check, commands_of, parse_command, question_text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/help", ("help", "")),
        ("/Model  guide 2 \n", ("model", "guide 2")),
        ("/save-preset of\nmine", ("save-preset", "of\nmine")),
        ("/system\nBe brief.", ("system", "Be brief.")),
    ],
)
def test_a_word_after_a_stroke_is_a_command(text, found):
    assert parse_command(text) == found


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
def test_what_is_no_command_is_sent(text, question):
    assert parse_command(text) is None
    assert question_text(text) == question


def test_each_command_is_named_once_and_some_front_end_has_it():
    names = [command.name for command in COMMANDS]
    assert len(set(names)) == len(names)
    assert {*commands_of("app"), *commands_of("run")} == set(COMMANDS)


@pytest.mark.parametrize(
    ("typed", "front", "told"),
    [
        ("/hlep", "app", "Did you mean /help? /help lists the commands; //hlep sends it as a question."),
        ("/xyz", "run", "/help lists the commands; //xyz sends it as a question."),
        ("/theme dark", "run", "/help lists the commands; //theme dark sends it as a question."),
        ("/new to this", "run", "//new to this sends it as a question."),
        ("/open", "run", "Continue a stored conversation."),
        ("/rename", "app", "Rename this conversation."),
    ],
)
def test_a_wrong_command_says_what_is_right(typed, front, told):
    with pytest.raises(CommandError) as raised:
        check(*parse_command(typed), front)
    assert raised.value.hint == told


@pytest.mark.parametrize("typed", ["/new", "/model", "/model guide", "/search", "/open 1a2b"])
def test_an_argument_in_brackets_may_be_omitted(typed):
    check(*parse_command(typed), "run")
