"""The slash commands of `edgechat run` that change a conversation, as the app has them."""

import re
from collections.abc import Callable
from pathlib import Path

from tests.cli.running import edgechat
from tests.cli.test_run_plain import held, open_store, sentences

Script = Callable[..., Path]


def turns(chat=0):
    """Return what was said in the conversation that was begun so many conversations ago."""
    chats = open_store(lambda store: store.chats())
    _, found = open_store(lambda store: store.load(chats[chat].id))
    return [turn.content for turn in found]


def test_a_reply_is_regenerated_and_both_stay(script):
    run = held(script(reply="Hello."), "/retry", "Who?", "/retry")
    assert run.stdout == "Hello.\nHello.\n"
    assert "error: There is no question yet to answer again." in sentences(run)
    assert turns() == ["Who?", "Hello.", "Hello."]


def test_a_file_is_sent_with_the_next_question_alone(script, tmp_path):
    (tmp_path / "notes.txt").write_text("The zebra is striped.")
    path = script(reply="Plain.", rules=[{"when": "zebra", "reply": "Striped."}])
    run = held(
        path,
        f"/attach {tmp_path / 'nothing.txt'}",
        f"/attach {tmp_path / 'notes.txt'}",
        "How?",
        "/new",
        "And?",
    )
    assert run.stdout == "Striped.\nPlain.\n"
    told = sentences(run)
    assert any(line.startswith("error: No such file") for line in told)
    assert "notes.txt will be sent with the next question." in told


def test_the_system_prompt_and_parameters_are_set_and_saved(script):
    path = script(reply="Ok.")
    lines = ("/system Be brief.", "/set temperature 0.3", "/save-preset short", "Who?", "/new", "Who?")
    run = held(path, *lines, "/preset short", "Who?", "/set heat 1", "/think maybe", "/preset none")
    assert turns(0) == ["Be brief.", "Who?", "Ok.", "Who?", "Ok."]
    assert turns(1) == ["Be brief.", "Who?", "Ok."]
    told = sentences(run)
    assert "temperature is 0.3 in this conversation." in told
    assert "error: No such parameter: 'heat'." in told
    assert "error: Use on, off or auto, not 'maybe'." in told
    assert "error: No such preset: 'none'." in told
    chats = open_store(lambda store: store.chats())
    assert [chat.settings.sampling.temperature for chat in chats] == [0.3, 0.3]


def test_a_conversation_is_renamed_exported_deleted_and_imported(script, tmp_path):
    file = tmp_path / "out.json"
    first = ("/rename Nothing yet", "Who?", "/rename A title", "/pin", "/pin", f"/export {file}")
    run = held(script(reply="Hello."), *first, "/delete", "/chats", f"/import {file}", "/chats")
    told = sentences(run)
    assert "error: This conversation is empty." in told
    assert "Renamed to “A title”." in told
    assert told.index("Pinned to the top of the list.") < told.index("No longer pinned.")
    assert f"Written to {file}" in told
    assert "There are no conversations yet." in told
    (restores,) = re.findall(r"edgechat chats restore \w+", run.stderr)
    assert "Continuing: A title (2 messages)." in told
    assert edgechat(*restores.split()[1:]).returncode == 0
    assert sorted(map(len, (turns(0), turns(1)))) == [2, 2]


def test_a_reply_that_was_cut_off_goes_on(script):
    path = script(reply="Hello there.")
    assert edgechat("run", path, "Who?", "--max-tokens", "5").stdout == "Hello\n"
    run = held(path, "/continue", "/continue", words=("--continue",))
    assert run.stdout == " there.\n"
    assert "error: There is no answer to continue." in sentences(run)
    assert turns() == ["Who?", "Hello there."]


def test_a_folder_is_added_and_the_places_that_are_cited_are_said(script, tmp_path):
    folder = tmp_path / "handbook"
    folder.mkdir()
    (folder / "pumps.md").write_text("# Pumps\n\nThe pump is primed with oil.\n")
    path = script(reply="With oil [1].")
    told = sentences(held(path, f"/docs {folder}", "How?", "/docs", "/docs handbook", "/docs nowhere"))
    assert "handbook is switched on in this conversation: 1 file." in told
    assert told.index("Sources:") + 1 == told.index("[1] handbook/pumps.md")
    assert any(line.startswith("Documents in this conversation: handbook.") for line in told)
    assert "Documents in this conversation: none." in told
    assert "error: There are no documents 'nowhere', and no such folder." in told
