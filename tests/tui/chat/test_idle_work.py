"""What is computed between answers: vectors of passages that questions found no time for."""

import asyncio
from contextlib import closing

import pytest

from edgechat.chat.parameters import set_documents
from edgechat.documents import registry
from edgechat.documents.indexing import update
from tests.fakes import FakeEmbedder, FakeEngine
from tests.tui.chat.views import say, started, until

PARTS = 90


@pytest.fixture
def embedder(monkeypatch):
    embedder = FakeEmbedder(PARTS)
    monkeypatch.setattr("edgechat.documents.embedding.embedder_here", lambda _loads: embedder)
    return embedder


@pytest.fixture
def parts(tmp_path):
    """Documents that do not fit into a context."""
    (tmp_path / "parts").mkdir()
    for number in range(PARTS):
        (tmp_path / "parts" / f"{number}.md").write_text(f"The part {number} is heavy. {'So. ' * 200}")
    with closing(registry.create("parts")) as collection:
        collection.add_root(str(tmp_path / "parts"))
        update(collection)


def embedded():
    with closing(registry.open_collection("parts")) as collection:
        return collection.counts().embedded


async def ask(controller, embedder, question):
    embedder.is_answering = lambda: controller.shown.is_answering
    await say(controller, question)


@pytest.mark.usefixtures("parts")
async def test_passages_are_embedded_between_answers(tmp_path, embedder):
    async with started(tmp_path / "chats.db", FakeEngine(["One."], ["Two."])) as (controller, _):
        await set_documents(controller.session, controller.shown, ("parts",))
        embedder.most = 60
        await ask(controller, embedder, "How heavy is the part 7?")
        assert embedder.answering[:2] == [True, True]  # 32, before they are searched
        await until(lambda: len(embedder.answering) == 4)
        assert embedder.answering[2:] == [False, False]
        assert controller.shown.activity[0] == "Embedding passages of parts"
        assert embedded() == 48

        embedder.most = PARTS
        await ask(controller, embedder, "And the part 8?")
        assert embedder.cancelled == 1
        await until(lambda: embedded() == PARTS)
        await until(lambda: controller.shown.activity[0] == "")
    assert len(embedder.texts) == PARTS  # none twice


@pytest.mark.usefixtures("parts")
async def test_closing_ends_it(tmp_path, embedder):
    embedder.most = 40
    async with started(tmp_path / "chats.db", FakeEngine(["One."])) as (controller, _):
        await set_documents(controller.session, controller.shown, ("parts",))
        await ask(controller, embedder, "How heavy is the part 7?")
        await until(lambda: len(embedder.answering) == 3)
    assert (embedder.cancelled, embedded()) == (1, 32)


@pytest.mark.slow
async def test_documents_that_are_given_whole_need_no_vectors(tmp_path, embedder):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "7.md").write_text("The part 7 is heavy.")
    with closing(registry.create("parts")) as collection:
        collection.add_root(str(tmp_path / "parts"))
    async with started(tmp_path / "chats.db", FakeEngine(["One."])) as (controller, _):
        await set_documents(controller.session, controller.shown, ("parts",))
        await ask(controller, embedder, "How heavy is the part 7?")
        await asyncio.sleep(0.2)
    assert (embedder.texts, embedded()) == ([], 0)
