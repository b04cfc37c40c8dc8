"""What is offered after Tab in place of a value: as shells ask for it, through the program."""

import pytest

from edgechat.chat.conversation import Conversation
from edgechat.chat.storage.store import Store, store_path
from edgechat.cli import completion
from edgechat.cli.main import app, run_cli
from tests import homes
from tests.fakes import FakeEngine, send
from tests.kit.build import tiny


@pytest.fixture(autouse=True)
def user(tmp_path, monkeypatch):
    homes.settle(tmp_path / "user", monkeypatch)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "user"


@pytest.fixture
def offered(monkeypatch, capsys):
    """A function from a line to the values that are offered; nothing else is said, whatever is wrong."""

    def ask(line):
        monkeypatch.setenv("_EDGECHAT_COMPLETE", "complete_fish")
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        assert run_cli() == 0
        found = capsys.readouterr()
        assert found.err == ""
        return [value.partition("\t")[0] for value in found.out.splitlines() if value]

    return ask


async def kept(title):
    store = await Store.open(store_path())
    try:
        conversation = Conversation(store, "guide")
        async for _ in send(conversation, FakeEngine(), title):
            pass
        return conversation.chat.id
    finally:
        await store.close()


def test_whom_a_model_is_offered_to(offered):
    assert offered("edgechat run gu") == offered("edgechat --model gu") == ["guide"]
    assert offered("edgechat plan qwen3-8") == offered("edgechat pull qwen3-8") == ["qwen3-8b"]
    assert offered("edgechat run qwen3-8") == []
    assert offered("edgechat run guide --draft n") == ["none", "ngram"]
    assert offered("edgechat pull qwen3-8b --draft a") == ["auto"]
    assert offered("edgechat plan --quality g") == ["good"]


def test_paths_are_left_to_the_shell(offered):
    assert offered("edgechat bench guide --plot fo") == []
    assert offered("edgechat run ./fo") == []
    assert offered("edgechat import fo") == []


def test_only_names_that_need_no_quoting(user):
    """What is offered is evaluated by zsh with the older script: a name must not run anything."""
    model = tiny()
    for name in ("plain.gguf", "two words.gguf", "$(touch x).gguf", "a`b.gguf", 'a"b.gguf', "a;b.gguf"):
        homes.place(model, user.parent / "here" / name)
    assert [value for value, _ in completion.local_models("") if value != "guide"] == ["plain.gguf"]


def test_no_name_that_would_land_as_an_option(user):
    for name in ("-q.gguf", "--anyway.gguf", "a-b.gguf"):
        homes.place(tiny(), user.parent / "here" / name)
    assert [value for value, _ in completion.local_models("") if value != "guide"] == ["a-b.gguf"]
    assert completion.local_models("-") == []


async def test_conversations_are_told_by_harmless_titles(offered):
    chat = await kept('Say `this` "and" $(that): [bold]\x1b[31m')
    found = completion.chats("")
    assert found == [(chat[:8], "Say this and that bold 31m")]
    assert completion.chats(chat[:3]) == found
    assert completion.chats("zz") == []
    assert offered(f"edgechat chats show {chat[:3]}") == offered("edgechat run guide --chat ") == [chat[:8]]


def test_what_is_broken_offers_nothing_and_says_nothing(home, offered):
    for name, text in (("config/models.toml", "[[model]\n"), ("data/chats.db", "no database")):
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert offered("edgechat run gu") == []
    assert offered("edgechat chats show ") == []
    assert (home / "data" / "chats.db").read_text() == "no database"


def test_asking_makes_no_file_of_conversations(home):
    assert completion.chats("") == []
    assert not (home / "data" / "chats.db").exists()


def test_an_unknown_command_is_no_error_yet(offered):
    assert "run" in offered("edgechat chat ")
    assert "search" in offered("edgechat chats delete ")


@pytest.fixture
def answered(monkeypatch, capsys):
    """A function from what a script asks to the exit code, and what is printed to stdout and stderr."""

    def ask(instruction, **variables):
        monkeypatch.setenv("_EDGECHAT_COMPLETE", instruction)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return run_cli(), *capsys.readouterr()

    return ask


def test_older_scripts_get_their_answers(answered):
    """Scripts of typer, which earlier versions have installed."""
    line = "edgechat run guide --draft n"
    bash = {"COMP_WORDS": line, "COMP_CWORD": "4"}
    assert answered("complete_bash", **bash) == (0, "none\nngram\n", "")
    told = '_arguments \'*: :(("none":"no drafting"\n"ngram":"n-grams of the conversation"))\'\n'
    assert answered("complete_zsh", _TYPER_COMPLETE_ARGS=line) == (0, told, "")
    assert answered("complete_zsh", _TYPER_COMPLETE_ARGS="edgechat run ./fo") == (0, "_files\n", "")
    word = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_WORD_TO_COMPLETE": "n"}
    told = "none:::no drafting\nngram:::n-grams of the conversation\n"
    assert answered("complete_powershell", **word) == answered("complete_pwsh", **word) == (0, told, "")


@pytest.mark.parametrize(("line", "code"), [("edgechat run gu", 0), ("edgechat run ./fo", 1)])
def test_fish_asks_whether_there_is_anything(answered, line, code):
    asked = answered("complete_fish", _TYPER_COMPLETE_ARGS=line, _TYPER_COMPLETE_FISH_ACTION="is-args")
    assert asked == (code, "", "")


def test_questions_that_no_script_asks(answered):
    assert answered("bogus") == (1, "", "Invalid completion instruction.\n")
    assert answered("complete_tcsh") == (1, "", "Shell tcsh not supported.\n")
    assert answered("tell_bash") == (1, "", 'Completion instruction "tell" not supported.\n')


@pytest.mark.parametrize(
    ("shell", "file", "lines"),
    [
        ("bash", ".bash_completions/edgechat.sh", {".bashrc": ".bash_completions/edgechat.sh"}),
        ("zsh", ".zfunc/_edgechat", {".zshrc": "fpath+=~/.zfunc; autoload -Uz compinit; compinit"}),
        ("fish", ".config/fish/completions/edgechat.fish", {}),
    ],
)
def test_a_script_is_installed_once(user, answered, monkeypatch, capsys, shell, file, lines):
    monkeypatch.setattr("shellingham.detect_shell", lambda: (shell, f"/bin/{shell}"))
    for name in lines:
        (user / name).write_text("# mine\n")
    for _ in range(2):
        monkeypatch.setattr("sys.argv", ["edgechat", "--install-completion"])
        assert run_cli() == 0
        assert f"{shell} completion installed in {user / file}" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["edgechat", "--show-completion"])
    assert run_cli() == 0
    script = capsys.readouterr().out
    assert (user / file).read_text() == script
    assert answered(f"source_{shell}") == (0, script, "")
    for name, line in lines.items():
        text = (user / name).read_text()
        assert text.startswith("# mine\n")
        assert text.count(line) == 1


def test_a_shell_without_a_script_is_named(monkeypatch, capsys):
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("tcsh", "/bin/tcsh"))
    for option, told in (
        ("--install-completion", "is not supported"),
        ("--show-completion", "not supported"),
    ):
        monkeypatch.setattr("sys.argv", ["edgechat", option])
        assert run_cli() == 1
        assert told in "".join(capsys.readouterr())


def test_the_list_of_commands_says_what_the_commands_say():
    listed = {name: command.help for name, command in app.commands.summaries.items()}
    assert {name: command.help for name, command in app.commands.items()} == listed
