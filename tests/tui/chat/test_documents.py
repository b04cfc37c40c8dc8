"""Documents in the app: chosen by /docs and @folder/, searched for a question, cited in the reply."""

import asyncio
import re
import time
from contextlib import closing

import pytest

from edgechat.documents import indexing, registry
from edgechat.documents.indexing import Progress, Update
from edgechat.tui.chat.prompt.above import Chips
from edgechat.tui.overlays.reading import PassageScreen

pytestmark = pytest.mark.slow

PUMPS = "\n\n".join(
    f"## Pump {n}\n\nThe pump {n} is primed with oil. {'It turns at the usual speed. ' * 12}"
    for n in range(40)
)
ANSWER = 'It is primed with oil [1]. They say "is primed with oil" and “the moon is made of cheese”; [99].'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with documents, in the current one."""
    handbook = tmp_path / "handbook"
    handbook.mkdir()
    for n in range(3):
        (handbook / f"part-{n}.md").write_text(PUMPS.replace("oil", "grease") if n else PUMPS)
    monkeypatch.chdir(tmp_path)
    return handbook


async def test_a_folder_in_a_question_is_searched_from_then_on(scene, folder):
    async with scene.loaded(["With oil [1]."], ["Again."]) as pilot:
        pilot.prompt.insert("How is the pump 7 of @handbook/ primed?")
        await pilot.see("▤ handbook/ · 3 files")
        await pilot.press("enter", see="With oil [1].", shown="passages from handbook")
        assert pilot.app.screen.query_one(Chips).display is False
        await pilot.say("And the pump 9?")
    first, _, second, _ = await scene.stored()
    listing, *passages = first.attachments
    assert (listing.name, listing.source) == ("handbook/", None)
    assert all(one.source is not None and one.source.collection == "handbook" for one in passages)
    assert any("pump 7" in one.text for one in passages)
    numbers = [one.source.number for turn in (first, second) for one in turn.attachments if one.source]
    assert numbers == [*range(1, len(numbers) + 1)]
    assert any("pump 9" in one.text for one in second.attachments)
    assert "pump 7" in pilot.engine.requests[0].messages[-1].content


async def test_a_large_folder_is_not_read_for_being_named(scene, folder, monkeypatch):
    monkeypatch.setattr(registry, "MOST_FILES", 2)
    async with scene.loaded(["Files."], size=(100, 30), notifications=True) as pilot:
        await pilot.say(
            "What is in @handbook/ then?", shown="handbook/ is large: only a list of its files is sent."
        )
        assert registry.names() == []
    (listing,) = (await scene.stored())[0].attachments
    assert listing.name == "handbook/"


async def test_docs_adds_a_folder_and_switches_it(scene, folder):
    async with scene.loaded(["Yes [1]."], size=(100, 30), notifications=True) as pilot:
        await pilot.press(*"/docs handbook/", "enter")
        await pilot.see("handbook is switched on in this conversation: 3 files.")
        await pilot.say("Pump 3?")
        await pilot.press(*"/docs handbook", "enter", see="Documents in this conversation: none.")
        await pilot.press(*"/docs", "enter", see="○ handbook")
        await pilot.press("space", see="◉ handbook")
        await pilot.press("escape", *"/docs nowhere", "enter", see="no document collection named 'nowhere'")
    async with scene(last=True) as pilot:
        await pilot.see("Yes [1].")
        assert list(pilot.controller.shown.documents) == ["handbook"]


@pytest.fixture
def endless(monkeypatch):
    """Let reading documents last until it is cancelled; what it was told at its end."""
    ends = []

    def update(_collection, on_progress, is_cancelled):
        on_progress(Progress(done=11, total=214, name="x.md"))
        while not is_cancelled():
            time.sleep(0.01)
        ends.append(True)
        return Update(is_complete=False)

    monkeypatch.setattr("edgechat.documents.library.update", update)
    return ends


async def test_escape_stops_reading_and_gives_the_question_back(scene, folder, endless):
    async with scene.loaded(["Never."]) as pilot:
        await pilot.ask("What is in @handbook/ then?", see="Reading 12 of 214 documents")
        await pilot.press("escape", until=lambda: not pilot.app.screen.answering)
        await pilot.until(lambda: bool(endless))
        assert pilot.prompt.text == "What is in @handbook/ then?"
        pilot.shows(hidden="Reading")
    assert pilot.engine.requests == []


async def test_escape_stops_adding_a_folder(scene, folder, endless):
    async with scene.loaded(size=(100, 30), notifications=True) as pilot:
        await pilot.press(*"/docs handbook/", "enter", see="Reading 12 of 214 documents")
        await pilot.press("escape", see="The documents read so far are kept")
        assert endless == [True]
        pilot.shows(hidden="Reading")
        assert not pilot.controller.shown.documents


async def test_another_wording_finds_other_passages_and_a_retry_keeps_them(scene, folder):
    async with scene.loaded(["One."], ["Two."], ["Three."]) as pilot:
        await pilot.say("How is the pump 7 of @handbook/ primed?")
        controller = pilot.controller
        before = controller.shown.turns[0].attachments
        await pilot.press("ctrl+r", see="Two.")
        assert controller.shown.turns[0].attachments == before
        await pilot.until(lambda: not pilot.app.screen.answering)
        await pilot.press("tab", "up", "e")
        await pilot.until(lambda: "pump 7" in pilot.prompt.text)
        assert all(file.source is None for file in pilot.app.screen.pane.attachments)
        pilot.prompt.clear()
        await pilot.say("How is the pump 31 primed?", see="Three.")
        after = controller.shown.turns[0].attachments
    assert next(one.source.number for one in after if one.source) == 1
    assert any("pump 31" in one.text for one in after)
    assert not any("pump 7 " in one.text for one in after)


async def test_citations_lead_to_passages(scene, folder):
    async with scene.loaded([ANSWER], size=(100, 36), tooltips=True) as pilot:
        await pilot.say("How is the pump 7 of @handbook/ primed?")
        cited, unknown = pilot.place_of("[1]"), pilot.place_of("[99]")
        await pilot.hover(offset=cited)
        await pilot.see("[1] handbook/part-")
        await pilot.hover(offset=unknown)
        await pilot.gone("[1] handbook/part-")
        await pilot.click(offset=cited)
        await pilot.see("The file has not changed since.", shown="╭─ [1] handbook/part-")
        await pilot.press("escape")
        await pilot.click(offset=unknown)
        await pilot.pause()
        assert not isinstance(pilot.app.screen, PassageScreen)
        await pilot.click_on("passages from", see="│ [2] handbook/")
        await pilot.click_on("[2] handbook/", see="╭─ [2] handbook/part-")
        await pilot.press("right", see="╭─ [3] handbook/part-")
        await pilot.press("escape", "tab", "enter", see="╭─ [1] handbook/part-")
        assert "←→ others" not in pilot.text  # the reply cites no other


async def test_what_is_quoted_and_in_no_passage_is_marked_once_the_reply_has_ended(scene, folder):
    seen = asyncio.Event()
    async with scene.loaded([ANSWER, seen, " End."], size=(100, 36)) as pilot:
        await pilot.ask("How is the pump 7 of @handbook/ primed?", see="made of cheese")
        pilot.shows(hidden="not in the documents")
        seen.set()
        await pilot.see("End.")
        await pilot.see("not in the documents: “the moon is made of cheese”")
        pilot.shows(hidden="not in the documents: “is primed")
        marked = [
            line.content.plain[span.start : span.end]
            for piece in pilot.transcript.pieces
            for line in piece.lines(96)
            for span in line.content.spans
            if span.style == ".unfounded"
        ]
        assert " ".join(marked) == "“the moon is made of cheese”"[1:-1]


async def test_only_a_file_of_the_documents_is_looked_at_and_opened(scene, folder, monkeypatch):
    shown = []
    monkeypatch.setattr("edgechat.tui.terminal.programs.show_file", shown.append)
    async with scene.loaded([ANSWER], size=(100, 36), say="How is the pump 7 of @handbook/ primed?") as pilot:
        await pilot.press("tab", "p", see="has not changed since")
        await pilot.press("o", until=lambda: bool(shown))
        assert shown[0].parent == folder
        await pilot.press("escape")
        for file in folder.iterdir():
            file.write_text("# Other\n")
        await pilot.press("p", see="The file has changed since.")
        await pilot.press("escape")
        registry.remove("handbook")  # as if the conversation came from another machine
        await pilot.press("p", see="no longer in the documents")
        await pilot.press("o")
        await pilot.pause(0.3)
        await pilot.press("escape", "escape")
        await pilot.say("And the pump 9?")
        pilot.shows("There is no document collection named 'handbook'.", "To ask without them: /docs off")
        assert pilot.prompt.text == "And the pump 9?"
    assert len(shown) == 1


async def test_a_folder_that_is_away_is_told_of_and_still_answers(scene, folder):
    async with scene.loaded([ANSWER], ["Again [1]."], size=(80, 24), notifications=True) as pilot:
        await pilot.say("How is the pump 7 of @handbook/ primed?")
        folder.rename(folder.with_name("unplugged"))
        pilot.app.screen.session.documents._fresh.clear()  # 10 seconds later
        await pilot.say("And the pump 9?")
        told = [one.message for one in pilot.app._notifications]
        assert any("is currently unavailable; its 3 files" in message for message in told)
        await pilot.press("tab", "p", see="The file is missing.")
        await pilot.press("escape", "escape", *"/docs", "enter")
        await pilot.see("◉ handbook              3 files · currently unavailable")
    assert any(one.source is not None for one in (await scene.stored())[2].attachments)


async def test_the_list_of_documents_fits_on_a_small_screen(scene, tmp_path):
    for number in range(15):
        with closing(registry.create(f"c{number:02}")) as collection:
            for part in range(20):
                collection.add_root(str(tmp_path / f"{part:02}"))
    (registry.folder() / "c01.db").write_text("no database at all, " * 99)
    async with scene.loaded(size=(80, 24)) as pilot:
        await pilot.press(*"/docs", "enter")
        await pilot.until(lambda: re.search(r"… and 1\d more", pilot.text) is not None)
        pilot.shows("To add a folder: ", "Esc closes ─╯")
        await pilot.press("down", see="To index them again: edgechat docs rm c01")
        pilot.shows("The collection c01 cannot be read: file is not a database.")


def test_a_folder_gets_a_name_of_its_own_once(tmp_path):
    for parent in ("a", "b"):
        (tmp_path / parent / "notes").mkdir(parents=True)
    names = [registry.collection_of(tmp_path / parent / "notes") for parent in ("a", "b", "a")]
    assert names == ["notes", "notes-2", "notes"]
    (tmp_path / "a" / "notes" / "one.md").write_text("# One\n")
    assert registry.survey(tmp_path / "a" / "notes").files == 1
    collection = registry.open_collection("notes")
    assert indexing.update(collection).read == 1
    collection.close()
    found = [(one.name, one.about) for one in registry.known_collections()]
    assert found == [("notes", "1 file"), ("notes-2", "0 files")]
    assert registry.holds("notes", str(tmp_path / "a" / "notes" / "one.md"))
    assert not registry.holds("notes", "/etc/passwd")
    assert not registry.holds("nothing", "/etc/passwd")
