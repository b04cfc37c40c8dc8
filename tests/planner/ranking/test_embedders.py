"""Which embedding model searches documents."""

import msgspec
import pytest

from edgechat.base import paths
from edgechat.base.errors import DoesNotFit, ModelFileError
from edgechat.models.catalogue import EmbeddingPrefixes, catalogue
from edgechat.planner.candidates import everything
from edgechat.planner.ranking import suggestions
from edgechat.planner.ranking.suggestions import installed_embedder, prefixes_of, recommended_embedder
from tests import homes
from tests.kit import EMBEDDERS, Spec, build, tiny

NOMIC = "nomic-ai/nomic-embed-text-v1.5-GGUF"
EMBEDDING = [entry for entry in catalogue() if entry.embedding is not None]


@pytest.fixture
def user(tmp_path, monkeypatch):
    homes.settle(tmp_path / "user", monkeypatch)
    return tmp_path / "user"


def own(model, name):
    return homes.place(model, paths.data_dir() / "models" / name)


def installed(named=None):
    model = installed_embedder(named)
    assert model is not None
    return model


@pytest.mark.slow
def test_none_is_ranked_among_chat_models():
    ranked = {file.entry.name for files in everything(mlx=True) for file in files if file.entry}
    assert not ranked & {entry.name for entry in EMBEDDING}
    assert EMBEDDING[0].name == "embeddinggemma"
    prefixes = {entry.name: entry.embedding for entry in EMBEDDING}
    assert prefixes["nomic-embed-text-v1.5"] == EmbeddingPrefixes(
        query="search_query: ", passage="search_document: "
    )


@pytest.mark.slow
def test_a_superseded_model_is_proposed_only_where_it_is_here(user):
    own(tiny(), "Mistral-7B-Instruct-v0.3-Q4_K_M.gguf")
    older = {entry.name for entry in catalogue() if entry.superseded}
    assert {"mistral-7b-v0.3", "qwen3.5-27b"} <= older
    (files,) = (files for files in everything(mlx=True) if files[0].model in older)
    assert [(file.model, file.quant, file.path is None) for file in files] == [
        ("mistral-7b-v0.3", "Q4_K_M", False)
    ]


def test_the_first_that_fits_is_recommended(monkeypatch):
    found = recommended_embedder()
    assert found is not None
    assert (found.model, found.size) == ("embeddinggemma", 333_590_944)
    really = suggestions.plan_variant

    def only_small(variant, *args, **options):
        if variant.size > 200_000_000:
            raise DoesNotFit("It is too large.")
        return really(variant, *args, **options)

    monkeypatch.setattr(suggestions, "plan_variant", only_small)
    found = recommended_embedder()
    assert found is not None
    assert found.model == "nomic-embed-text-v1.5"


def test_of_those_here_the_catalogue_comes_first(user):
    own(tiny("dense"), "chat.gguf")
    assert installed_embedder() is None
    reranker = build(Spec(shape=EMBEDDERS["bert"].sized(pooling=4), name="tiny-reranker"))
    own(reranker, "a-reranker.gguf")
    assert installed_embedder() is None
    own(tiny("bert"), "mine.gguf")
    assert installed().name == "mine"
    own(tiny("bert", weights="F16"), "nomic-embed-text-v1.5.Q4_K_M.gguf")
    assert installed().quant == "Q4_K_M"
    homes.in_hub(user, tiny("bert", weights="Q8_0"), NOMIC, "nomic-embed-text-v1.5.Q8_0.gguf")
    assert installed().quant == "Q8_0"
    own(tiny("qwen3-embedding"), "Qwen3-Embedding-0.6B-Q8_0.gguf")
    assert installed().name == "qwen3-embedding-0.6b"
    assert installed("nomic-embed-text").quant == "Q8_0"
    with pytest.raises(ModelFileError, match="cannot be used for embedding"):
        installed("a-reranker")


def test_prefixes_are_those_of_the_namesake(user):
    own(tiny("bert"), "mine.gguf")
    assert prefixes_of(installed("mine")) == EmbeddingPrefixes()
    own(build(Spec(shape=EMBEDDERS["bert"], name="Embeddinggemma 300M")), "copy.gguf")
    assert prefixes_of(installed("copy")).query == "task: search result | query: "
    homes.in_ollama(user, tiny("qwen3-embedding"), "qwen3-embedding:4b")
    query = prefixes_of(installed("ollama/qwen3-embedding:4b")).query
    assert query.endswith("\nQuery:")
    assert query == msgspec.structs.astuple(EMBEDDING[1].embedding)[0]
