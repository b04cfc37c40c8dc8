"""What a chat is given of collections: room, numbers, whole documents, and nothing twice."""

import asyncio
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from edgechat.base.errors import DocumentError, DocumentsUnwritable, DoesNotFit
from edgechat.documents import registry
from edgechat.documents.collection import Collection
from edgechat.documents.embedding import Embedder, packed
from edgechat.documents.indexing import update
from edgechat.documents.library import DocumentLibrary, Room
from tests import disks
from tests.fakes import FakeEmbedder

if TYPE_CHECKING:
    pass

FILLER = "\n\n".join(f"Paragraph {n}, with words. " * 20 for n in range(40))
PASSAGES = Room(passages=3000, whole=0)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "handbook"
    folder.mkdir()
    (folder / "long.md").write_text(f"# Long\n{FILLER}\n\nThe zebra is here.\n", encoding="utf-8")
    (folder / "short.txt").write_text("A zebra,\nand a yak.\n", encoding="utf-8")
    with closing(registry.create("handbook")) as collection:
        collection.add_root(str(folder))
    return folder


@pytest.fixture
async def library(folder):
    library = DocumentLibrary()
    await library.refresh(["handbook"])
    yield library
    await library.close()


async def test_passages_come_with_number_name_and_place(library, folder):
    found = await library.find(["handbook"], "zebra or yak?", PASSAGES)
    assert [one.source.number for one in found] == [1, 2]
    assert found[0].name == "handbook/short.txt, lines 1–2"
    assert found[0].source.path == str(folder / "short.txt")
    assert found[0].text == "A zebra,\nand a yak."
    assert not found[0].source.has_changed
    text = (folder / "long.md").read_text(encoding="utf-8").split("\n")
    for one in found:
        lines = text if one.source.path.endswith("long.md") else ["A zebra,", "and a yak."]
        assert one.text == "\n".join(lines[one.source.start - 1 : one.source.end])


async def test_no_more_than_there_is_room_for(library):
    for letters in (0, 19, 500, 1500, 5000, 50_000):
        found = await library.find(["handbook"], "zebra words", Room(passages=letters, whole=0))
        assert sum(len(one.text.encode()) for one in found) <= letters
    assert [one.name for one in await library.find(["handbook"], "zebra", Room(passages=19, whole=0))] == [
        "handbook/short.txt, lines 1–2"
    ]


async def test_what_was_given_is_not_given_again(library):
    first = await library.find(["handbook"], "zebra", PASSAGES)
    given = [one.source for one in first]
    assert await library.find(["handbook"], "zebra", PASSAGES, given) == []
    (again,) = await library.find(["handbook"], "zebra", PASSAGES, given[:1], given)
    assert again.source.number == 3
    assert (again.source.path, again.source.start) == (given[1].path, given[1].start)


async def test_what_fits_is_given_whole(library, folder):
    found = await library.find(["handbook"], "anything", Room(passages=0, whole=100_000))
    assert [one.name for one in found] == ["handbook/long.md", "handbook/short.txt"]
    assert [one.source.place for one in found] == ["", ""]
    for one in found:
        text = Path(one.source.path).read_text(encoding="utf-8")
        assert one.text.split() == text.split()
    assert (
        await library.find(["handbook"], "zebra", PASSAGES, [one.source for one in found]) == []
    )  # passages of documents that the model has


async def test_changes_are_seen_and_told(library, folder):
    (before, *_) = await library.find(["handbook"], "yak", PASSAGES)
    (folder / "short.txt").write_text("A gnu.\n", encoding="utf-8")
    assert before.source.has_changed
    assert await library.refresh(["handbook"]) == []  # it was looked at a moment ago
    (told,) = await library.refresh(["handbook"], fresh_seconds=0)
    assert told.read == 1
    (after,) = await library.find(["handbook"], "gnu", PASSAGES, [before.source])
    assert after.text == "A gnu."


async def test_what_is_away_is_told_once(library, folder):
    notes = []
    library.on_note = notes.append
    for _ in range(2):
        folder.rename(folder.with_name("unplugged"))
        await library.refresh(["handbook"], fresh_seconds=0)
        await library.refresh(["handbook"], fresh_seconds=0)
        folder.with_name("unplugged").rename(folder)
        await library.refresh(["handbook"], fresh_seconds=0)
    assert notes == [f"{folder} is currently unavailable; its 2 files are searched as last indexed."] * 2
    assert await library.find(["handbook"], "zebra", PASSAGES)


async def test_what_was_read_last_is_searched_on_a_read_only_disk(folder, home):
    first = DocumentLibrary()
    await first.refresh(["handbook"])
    await first.close()
    (folder / "new.txt").write_text("An okapi.\n")
    notes: list[str] = []
    with disks.read_only(home):
        library = DocumentLibrary()
        library.on_note = notes.append
        assert await library.refresh(["handbook"]) == []
        assert await library.find(["handbook"], "zebra", PASSAGES, embed=8)
        with pytest.raises(DocumentsUnwritable):
            await library.refresh(["handbook"], fresh_seconds=0, must_write=True)
        await library.close()
    told = "The collection handbook cannot be written: the disk is read-only. The last version is searched."
    assert notes == [told]


async def test_cancelling_a_refresh_stops_it(folder):
    library = DocumentLibrary()
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(progress):
        loop.call_soon_threadsafe(began.set)
        while not task.cancelling():
            pass

    task = asyncio.create_task(library.refresh(["handbook"], slow))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(await library.best(["handbook"], "zebra", 8)) <= 1
    await library.close()


async def test_collections_that_are_not_there(library):
    with pytest.raises(DocumentError, match="There is no document collection named 'handbok'") as failed:
        await library.find(["handbok"], "zebra", PASSAGES)
    assert failed.value.hint == "Available: handbook"
    registry.remove("handbook")
    with pytest.raises(DocumentError, match="There is no document collection named 'handbook'"):
        await library.find(["handbook"], "zebra", PASSAGES)


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "a b", "-x", ".hidden", "x" * 65, "a\0"])
def test_names_that_are_no_names(name):
    with pytest.raises(DocumentError):
        registry.create(name)


@pytest.mark.parametrize(
    ("path", "name"),
    [("/a/My notes", "My-notes"), ("/", "documents"), ("/a/...", "documents"), ("/a/Straße.d", "Straße.d")],
)
def test_names_follow_from_folders(path, name):
    assert registry.name_for(Path(path)) == name


@pytest.mark.usefixtures("folder")
async def test_an_embedding_model_that_does_not_fit_leaves_the_words():
    def none_fits():
        raise DoesNotFit("It is too large.")

    notes = []
    library = DocumentLibrary(none_fits)
    library.on_note = notes.append
    try:
        await library.refresh(["handbook"])
        for _ in range(2):
            assert await library.find(["handbook"], "zebra or yak?", PASSAGES, embed=8)
    finally:
        await library.close()
    assert notes == ["Documents are searched by words alone. It is too large."]


class FruitEmbedder(FakeEmbedder):
    """Knows two meanings: bricks, and all else."""

    async def passages(self, texts):
        return np.stack([await self.query(text) for text in texts])

    async def query(self, text):
        return np.eye(2, dtype=np.float32)[int("brick" in text)]


async def add_embedded(root, *texts):
    root.mkdir(parents=True)
    for number, text in enumerate(texts):
        (root / f"{number}.txt").write_text(text, encoding="utf-8")
    with closing(registry.create("shed")) as collection:
        collection.add_root(str(root))
        update(collection)
        ids, read = zip(*collection.without_vector("fake", 8), strict=True)
        vectors = packed(await FruitEmbedder(8).passages(read))
        collection.put_vectors("fake", [(one, vectors[2 * n : 2 * n + 2]) for n, one in enumerate(ids)])


async def test_a_collection_that_is_removed_and_added_anew_is_another_one(tmp_path):
    library = DocumentLibrary(lambda: cast("Embedder", FruitEmbedder(8)))
    for number, texts in enumerate((("An apple.", "A brick."), ("A brick.", "An apple."))):
        await add_embedded(tmp_path / str(number) / "shed", *texts)
        assert len(await library.refresh(["shed"])) == 1
        found = await library.find(["shed"], "fruit", PASSAGES)
        assert [one.text for one in found] == ["An apple.", "A brick."]
        registry.remove("shed")
    await library.close()


async def test_each_batch_is_looked_for_behind_the_last(tmp_path, monkeypatch):
    library = DocumentLibrary(lambda: cast("Embedder", FruitEmbedder(8)))
    await add_embedded(tmp_path / "shed", "An apple.")
    for number in range(40):
        (tmp_path / "shed" / f"new{number}.txt").write_text(f"Brick {number}.", encoding="utf-8")
    await library.refresh(["shed"])
    asked = []
    look = Collection.without_vector

    def looked(collection, model, limit, after=0):
        asked.append(after)
        return look(collection, model, limit, after)

    monkeypatch.setattr(Collection, "without_vector", looked)
    assert await library.embed(["shed"]) == 40
    assert asked == [0, 17, 33, 41, 0]
    await library.close()


def test_a_folder_with_too_many_entries_is_huge_and_a_deep_one_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_MOST_ENTRIES", 20)
    deep = tmp_path.joinpath("deep", *"abcdefghijklmnop")
    deep.mkdir(parents=True)
    found = registry.survey(tmp_path / "deep")
    assert (found.is_complete, found.is_huge) == (False, False)
    (tmp_path / "wide").mkdir()
    for number in range(25):
        (tmp_path / "wide" / f"{number}.txt").touch()
    found = registry.survey(tmp_path / "wide")
    assert (found.is_huge, found.about) == (True, "more than 20 documents, 0 MiB")
