"""Passages are ranked anew by a real reranking model, in time, and without it where it cannot be had."""

from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from edgechat import settings
from edgechat.base import paths
from edgechat.base.errors import DoesNotFit, ModelFileError, ModelNotFound
from edgechat.documents import registry
from edgechat.documents.embedding import plan_beside
from edgechat.documents.library import DocumentLibrary, Room
from edgechat.documents.retrieval import Reranker, reranker_here
from tests import homes
from tests.engine.worker.test_supervisor import workers
from tests.kit import tiny
from tests.kit.rerankers import counting_reranker

pytestmark = pytest.mark.slow

QUESTION = "yak"
BY_WORDS = ["yak.txt", "both.txt", "far.txt"]
BY_SCORES = ["far.txt", "both.txt", "yak.txt"]


@pytest.fixture(autouse=True)
def folder(tmp_path):
    folder = tmp_path / "animals"
    folder.mkdir()
    (folder / "yak.txt").write_text("The yak is a yak. Where? A yak.\n")
    (folder / "both.txt").write_text("A yak, and zz, as it were, among other things.\n")
    (folder / "far.txt").write_text("zzzz zzzz zzzz, far from anything of the kind, a yak, zzzz zzzz zzzz.\n")
    (folder / "none.txt").write_text("Nothing of the sort.\n")
    with closing(registry.create("animals")) as collection:
        collection.add_root(str(folder))
    return folder


def reranker_of(path):
    return Reranker(partial(plan_beside, str(path), tuple))


@pytest.fixture
async def reranker():
    reranker = reranker_of(counting_reranker())
    yield reranker
    await reranker.close()


async def names_of(library):
    found = await library.find(["animals"], QUESTION, Room(passages=3000, whole=0))
    assert [one.source.number for one in found] == list(range(1, len(found) + 1))
    return [Path(one.source.path).name for one in found]


async def searched(make_reranker):
    """Return the files found for the question, the best first, and what was noted, after two questions."""
    notes = []
    library = DocumentLibrary(make_reranker=make_reranker)
    library.on_note = notes.append
    try:
        await library.refresh(["animals"])
        names = await names_of(library)
        assert await names_of(library) == names
    finally:
        await library.close()
    assert workers() == []
    return names, notes


async def test_passages_are_ranked_anew():
    assert await searched(lambda: None) == (BY_WORDS, [])
    assert await searched(lambda: reranker_of(counting_reranker())) == (BY_SCORES, [])


async def test_a_model_that_fails_leaves_the_ranks_and_says_so():
    def does_not_fit():
        raise DoesNotFit("It is too large.")

    note = "Documents are searched without the reranking model. "
    assert await searched(does_not_fit) == (BY_WORDS, [note + "It is too large."])
    names, notes = await searched(lambda: reranker_of(Path("/gone.gguf")))
    assert (names, len(notes)) == (BY_WORDS, 1)
    assert notes[0].startswith(note)
    assert (await searched(lambda: reranker_of(tiny("bert"))))[0] == BY_WORDS


async def test_a_worker_that_is_killed_leaves_the_ranks(reranker):
    library = DocumentLibrary(make_reranker=lambda: reranker)
    notes = []
    library.on_note = notes.append
    await library.refresh(["animals"])
    assert await names_of(library) == BY_SCORES
    (worker,) = workers()
    worker.kill()
    assert await names_of(library) in (BY_SCORES, BY_WORDS)  # by another worker, if its end was seen in time
    await library.close()
    assert workers() == []


async def test_only_what_the_time_is_enough_for_is_scored(reranker):
    texts = ["z" * n for n in range(40)]
    scores = await reranker.scores("a question", texts)
    assert scores == sorted(scores)
    assert len(scores) == 40
    many = ["zzz " * 200] * 40_000
    some = await reranker.scores("a question", many, seconds=2.0)
    assert 4 <= len(some) < 40_000
    assert some == pytest.approx([some[0]] * len(some), abs=1e-3)


class HalfDone(Reranker):
    """Scores the first two only."""

    async def scores(self, question, texts, seconds=60.0):
        return (await super().scores(question, texts, seconds))[:2]


async def test_what_is_not_reached_follows_in_its_order():
    plan = partial(plan_beside, str(counting_reranker()), tuple)
    assert await searched(lambda: HalfDone(plan)) == (["both.txt", "yak.txt", "far.txt"], [])


class Hurried(Reranker):
    """Has no time."""

    async def scores(self, question, texts, seconds=0.0):
        return await super().scores(question, texts, seconds)


async def test_a_model_that_is_too_slow_leaves_the_ranks():
    plan = partial(plan_beside, str(counting_reranker()), tuple)
    names, notes = await searched(lambda: Hurried(plan))
    assert names == BY_WORDS
    (note,) = notes
    assert "too slow here: 0 of 3 passages scored in 0 s" in note


async def test_what_is_too_long_is_cut(reranker):
    short, long = await reranker.scores("q" * 100_000, ["z", "z" * 100_000])
    assert long > short


async def test_settings_name_the_model():
    assert reranker_here() is None
    for model, name in ((counting_reranker(), "mine.gguf"), (tiny("bert"), "other.gguf")):
        homes.place(model, paths.data_dir() / "models" / name)
    assert reranker_here() is None  # it must be asked for: it takes time
    settings.change(("reranking_model",), "mine")
    reranker = reranker_here()
    assert reranker is not None
    better, worse = await reranker.scores("hi", ["zzz", "aaa"])
    assert better > worse
    await reranker.close()
    settings.change(("reranking_model",), "gone")
    with pytest.raises(ModelNotFound, match="gone"):
        reranker_here()
    settings.change(("reranking_model",), "other")
    with pytest.raises(ModelFileError, match="other as reranking_model, but it cannot be used for reranking"):
        reranker_here()
