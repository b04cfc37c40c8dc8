"""Documents in the app: chosen by /docs and @folder/, searched for a question, cited in the reply."""

import re
from contextlib import closing

import pytest

from edgechat.documents import indexing, known, registry
from edgechat.documents.indexing import Progress, Update
from edgechat.tui.chat.prompt.chips import Chips
from edgechat.tui.overlays.passage import PassageScreen
from tests.fakes import FakeEngine
from tests.tui.driving import app_with, ask, say, stored_turns, text_of, transcript, until

pytestmark = pytest.mark.slow

PUMPS = "\n\n".join(
    f"## Pump {n}\n\nThe pump {n} is primed with oil. {'It turns at the usual speed. ' * 12}"
    for n in range(40)
)
ANSWER = 'It is primed with oil [1]. They say "is primed with oil" and “the moon is made of cheese”; [99].'


@pytest.fixture
def path(tmp_path):
    return tmp_path / "chats.db"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with documents, in the current one."""
    handbook = tmp_path / "handbook"
    handbook.mkdir()
    for n in range(3):
        (handbook / f"part-{n}.md").write_text(PUMPS.replace("oil", "grease") if n else PUMPS)
    monkeypatch.chdir(tmp_path)
    return handbook


async def begun(pilot):
    await until(pilot, lambda: "it is." in text_of(pilot))


def place_of(pilot, text):
    """Return where a text is on the screen."""
    lines = text_of(pilot).split("\n")
    y = next(y for y, line in enumerate(lines) if text in line)
    return lines[y].index(text), y


async def test_a_folder_in_a_question_is_searched_from_then_on(path, folder):
    engine = FakeEngine(["With oil [1]."], ["Again."])
    async with app_with(engine, path).run_test() as pilot:
        await begun(pilot)
        pilot.app.screen.prompt.insert("How is the pump 7 of @handbook/ primed?")
        await until(pilot, lambda: "▤ handbook/ · 3 files" in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: "With oil [1]." in text_of(pilot))
        assert "passages from handbook" in text_of(pilot)
        assert pilot.app.screen.query_one(Chips).display is False
        await say(pilot, "And the pump 9?")
    first, _, second, _ = await stored_turns(path)
    listing, *passages = first.attachments
    assert (listing.name, listing.source) == ("handbook/", None)
    assert all(one.source is not None and one.source.collection == "handbook" for one in passages)
    assert any("pump 7" in one.text for one in passages)
    numbers = [one.source.number for turn in (first, second) for one in turn.attachments if one.source]
    assert numbers == [*range(1, len(numbers) + 1)]
    assert any("pump 9" in one.text for one in second.attachments)
    assert "pump 7" in engine.requests[0].messages[-1].content


async def test_a_large_folder_is_not_read_for_being_named(path, folder, monkeypatch):
    monkeypatch.setattr(known, "MOST_FILES", 2)
    async with app_with(FakeEngine(["Files."]), path).run_test(size=(100, 30), notifications=True) as pilot:
        await begun(pilot)
        await say(pilot, "What is in @handbook/ then?")
        assert "handbook/ is large: only its list is sent." in text_of(pilot)
        assert registry.names() == []
    (listing,) = (await stored_turns(path))[0].attachments
    assert listing.name == "handbook/"


async def test_docs_adds_a_folder_and_switches_it(path, folder):
    async with app_with(FakeEngine(["Yes [1]."]), path).run_test(size=(100, 30), notifications=True) as pilot:
        await begun(pilot)
        await pilot.press(*"/docs handbook/", "enter")
        await until(pilot, lambda: "handbook is switched on in this conversation: 3 files." in text_of(pilot))
        await say(pilot, "Pump 3?")
        await pilot.press(*"/docs handbook", "enter")
        await until(pilot, lambda: "Documents in this conversation: none." in text_of(pilot))
        await pilot.press(*"/docs", "enter")
        await until(pilot, lambda: "○ handbook" in text_of(pilot))
        await pilot.press("space")
        await until(pilot, lambda: "◉ handbook" in text_of(pilot))
        await pilot.press("escape")
        await pilot.press(*"/docs nowhere", "enter")
        await until(pilot, lambda: "no documents 'nowhere'" in text_of(pilot))
    async with app_with(FakeEngine(), path, last=True).run_test() as pilot:
        await until(pilot, lambda: "Yes [1]." in text_of(pilot))
        assert list(pilot.app.screen.controller.shown.documents) == ["handbook"]


@pytest.fixture
def endless(monkeypatch):
    """Let reading documents last until it is cancelled; what it was told at its end."""
    ends = []

    def update(_collection, on_progress, is_cancelled):
        on_progress(Progress(done=11, total=214, name="x.md"))
        while not is_cancelled():
            pass
        ends.append(True)
        return Update(is_complete=False)

    monkeypatch.setattr("edgechat.documents.library.update", update)
    return ends


async def test_escape_stops_reading_and_gives_the_question_back(path, folder, endless):
    engine = FakeEngine(["Never."])
    async with app_with(engine, path).run_test() as pilot:
        await begun(pilot)
        await ask(pilot, "What is in @handbook/ then?")
        await until(pilot, lambda: "Reading 12 of 214 documents" in text_of(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: not pilot.app.screen.answering)
        await until(pilot, lambda: bool(endless))
        assert pilot.app.screen.prompt.text == "What is in @handbook/ then?"
        assert "Reading" not in text_of(pilot)
    assert engine.requests == []


async def test_escape_stops_adding_a_folder(path, folder, endless):
    async with app_with(FakeEngine(), path).run_test(size=(100, 30), notifications=True) as pilot:
        await begun(pilot)
        await pilot.press(*"/docs handbook/", "enter")
        await until(pilot, lambda: "Reading 12 of 214 documents" in text_of(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: "What has been read is kept" in text_of(pilot))
        assert endless == [True]
        assert "Reading" not in text_of(pilot)
        assert not pilot.app.screen.controller.shown.documents


async def test_another_wording_finds_other_passages_and_a_retry_keeps_them(path, folder):
    async with app_with(FakeEngine(["One."], ["Two."], ["Three."]), path).run_test() as pilot:
        await begun(pilot)
        await say(pilot, "How is the pump 7 of @handbook/ primed?")
        controller = pilot.app.screen.controller
        before = controller.shown.turns[0].attachments
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "Two." in text_of(pilot))
        assert controller.shown.turns[0].attachments == before
        await until(pilot, lambda: not pilot.app.screen.answering)
        await pilot.press("tab", "up", "e")
        assert all(file.source is None for file in pilot.app.screen.pane.attachments)
        pilot.app.screen.prompt.clear()
        await say(pilot, "How is the pump 31 primed?")
        await until(pilot, lambda: "Three." in text_of(pilot))
        after = controller.shown.turns[0].attachments
    assert next(one.source.number for one in after if one.source) == 1
    assert any("pump 31" in one.text for one in after)
    assert not any("pump 7 " in one.text for one in after)


async def test_citations_lead_to_passages(path, folder):
    async with app_with(FakeEngine([ANSWER]), path).run_test(size=(100, 36), tooltips=True) as pilot:
        await begun(pilot)
        await say(pilot, "How is the pump 7 of @handbook/ primed?")
        cited, unknown = place_of(pilot, "[1]"), place_of(pilot, "[99]")
        await pilot.hover(offset=cited)
        await until(pilot, lambda: "[1] handbook/part-" in text_of(pilot))
        await pilot.hover(offset=unknown)
        await until(pilot, lambda: "[1] handbook/part-" not in text_of(pilot))
        await pilot.click(offset=cited)
        await until(pilot, lambda: "The file is as it was then." in text_of(pilot))
        assert "╭─ [1] handbook/part-" in text_of(pilot)
        await pilot.press("escape")
        await pilot.click(offset=unknown)
        await pilot.pause()
        assert not isinstance(pilot.app.screen, PassageScreen)
        await pilot.click(offset=place_of(pilot, "passages from"))
        await until(pilot, lambda: "│ [2] handbook/" in text_of(pilot))
        await pilot.click(offset=place_of(pilot, "[2] handbook/"))
        await until(pilot, lambda: "╭─ [2] handbook/part-" in text_of(pilot))
        await pilot.press("right")
        await until(pilot, lambda: "╭─ [3] handbook/part-" in text_of(pilot))
        await pilot.press("escape", "tab", "enter")
        await until(pilot, lambda: "╭─ [1] handbook/part-" in text_of(pilot))
        assert "←→ others" not in text_of(pilot)  # the reply cites no other


async def test_what_is_quoted_and_in_no_passage_is_marked_once_the_reply_has_ended(path, folder):
    async with app_with(FakeEngine([ANSWER, 0.5, " End."]), path).run_test(size=(100, 36)) as pilot:
        await begun(pilot)
        await ask(pilot, "How is the pump 7 of @handbook/ primed?")
        await until(pilot, lambda: "made of cheese" in text_of(pilot))
        assert "not in the documents" not in text_of(pilot)
        await until(pilot, lambda: "End." in text_of(pilot))
        await until(pilot, lambda: "not in the documents: “the moon is made of cheese”" in text_of(pilot))
        assert "not in the documents: “is primed" not in text_of(pilot)
        marked = [
            line.content.plain[span.start : span.end]
            for piece in transcript(pilot).pieces
            for line in piece.lines(96)
            for span in line.content.spans
            if span.style == ".unfounded"
        ]
        assert " ".join(marked) == "“the moon is made of cheese”"[1:-1]


async def test_only_a_file_of_the_documents_is_looked_at_and_opened(path, folder, monkeypatch):
    shown = []
    monkeypatch.setattr("edgechat.tui.terminal.viewer.show_file", shown.append)
    async with app_with(FakeEngine([ANSWER]), path).run_test(size=(100, 36)) as pilot:
        await begun(pilot)
        await say(pilot, "How is the pump 7 of @handbook/ primed?")
        await pilot.press("tab", "p")
        await until(pilot, lambda: "as it was then" in text_of(pilot))
        await pilot.press("o")
        await until(pilot, lambda: bool(shown))
        assert shown[0].parent == folder
        await pilot.press("escape")
        for file in folder.iterdir():
            file.write_text("# Other\n")
        await pilot.press("p")
        await until(pilot, lambda: "The file has changed since." in text_of(pilot))
        await pilot.press("escape")
        registry.remove("handbook")  # as if the conversation came from another machine
        await pilot.press("p")
        await until(pilot, lambda: "not in the documents any more" in text_of(pilot))
        await pilot.press("o")
        await pilot.pause(0.3)
        await pilot.press("escape", "escape")
        await say(pilot, "And the pump 9?")
        assert "There are no documents 'handbook'." in text_of(pilot)
        assert "To ask without them: /docs off" in text_of(pilot)
        assert pilot.app.screen.prompt.text == "And the pump 9?"
    assert len(shown) == 1


async def test_a_folder_that_is_away_is_told_of_and_still_answers(path, folder):
    async with app_with(FakeEngine([ANSWER], ["Again [1]."]), path).run_test(
        size=(80, 24), notifications=True
    ) as pilot:
        await begun(pilot)
        await say(pilot, "How is the pump 7 of @handbook/ primed?")
        folder.rename(folder.with_name("unplugged"))
        pilot.app.screen.session.documents._fresh.clear()  # 10 seconds later
        await say(pilot, "And the pump 9?")
        told = [one.message for one in pilot.app._notifications]
        assert any("is not there now; its 3 files" in message for message in told)
        await pilot.press("tab", "p")
        await until(pilot, lambda: "The file is not there now." in text_of(pilot))
        await pilot.press("escape", "escape", *"/docs", "enter")
        await until(pilot, lambda: "◉ handbook              3 files · not there now" in text_of(pilot))
    assert any(one.source is not None for one in (await stored_turns(path))[2].attachments)


async def test_the_list_of_documents_fits_on_a_small_screen(path, tmp_path):
    for number in range(15):
        with closing(registry.create(f"c{number:02}")) as collection:
            for part in range(20):
                collection.add_root(str(tmp_path / f"{part:02}"))
    (registry.folder() / "c01.db").write_text("no database at all, " * 99)
    async with app_with(FakeEngine(), path).run_test(size=(80, 24)) as pilot:
        await begun(pilot)
        await pilot.press(*"/docs", "enter")
        await until(pilot, lambda: re.search(r"… and 1\d more", text_of(pilot)) is not None)
        assert "To add a folder: " in text_of(pilot)
        assert "Esc closes ─╯" in text_of(pilot)
        await pilot.press("down")
        await until(pilot, lambda: "To index them anew: edgechat docs rm c01" in text_of(pilot))
        assert "The documents c01 cannot be read: file is not a database." in text_of(pilot)


def test_a_folder_gets_a_name_of_its_own_once(tmp_path):
    for parent in ("a", "b"):
        (tmp_path / parent / "notes").mkdir(parents=True)
    names = [known.collection_of(tmp_path / parent / "notes") for parent in ("a", "b", "a")]
    assert names == ["notes", "notes-2", "notes"]
    (tmp_path / "a" / "notes" / "one.md").write_text("# One\n")
    assert known.survey(tmp_path / "a" / "notes").files == 1
    collection = registry.open_collection("notes")
    assert indexing.update(collection).read == 1
    collection.close()
    assert [(one.name, one.about) for one in known.known_collections()] == [
        ("notes", "1 file"),
        ("notes-2", "0 files"),
    ]
    assert known.holds("notes", str(tmp_path / "a" / "notes" / "one.md"))
    assert not known.holds("notes", "/etc/passwd")
    assert not known.holds("nothing", "/etc/passwd")
