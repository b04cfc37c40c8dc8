"""What clients may name, with models laid out as tools leave them; and the pool over real models."""

import asyncio
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgechat import settings
from edgechat.base.errors import DoesNotFit, ModelFileError, ModelNotFound
from edgechat.chat.model_choice import remember
from edgechat.chat.storage.store import Store, store_path
from edgechat.device.memory import Memory
from edgechat.engine.types import ChatRequest, Delta, Message
from edgechat.models.local.locations import own_folder
from edgechat.planner import machine
from edgechat.planner.estimate.calibration import Calibration
from edgechat.planner.request import PlanRequest
from edgechat.server.pool import available_models
from edgechat.server.pool.available_models import AvailableModels, first_model
from edgechat.server.pool.models import ModelCard
from edgechat.server.pool.pool import real_pool
from edgechat.server.protocol.listing import ModelList, ModelsQuery, ShownModelBody
from tests import homes
from tests.engine.worker.test_supervisor import workers
from tests.kit import Spec, build, tiny
from tests.kit.projector_files import projector
from tests.kit.shapes import BERT

pytestmark = pytest.mark.slow

MIB = 2**20


@pytest.mark.parametrize(("changed", "created"), [(300_000_000_000, 253402300799), (-1e12, 0), (7.9, 7)])
def test_models_are_listed_whatever_time_their_files_tell(changed, created):
    card = ModelCard(id="a", created=available_models._created(changed))
    assert ModelList.of([card], ModelsQuery()).data[0].created == created


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with a model for chat and one for embeddings, as a user has put them there."""
    homes.settle(tmp_path / "user", monkeypatch)
    folder = own_folder()
    homes.place(tiny("dense"), folder / "chatty.gguf")
    homes.place(tiny("bert"), folder / "embedder.gguf")
    return folder


def test_names_of_the_list_are_found_and_paths_are_not(mine, tmp_path):
    shelf = AvailableModels("guide")
    assert shelf.find("chatty").path == mine / "chatty.gguf"
    assert shelf.find("CHATTY.gguf").id == "chatty"
    assert shelf.find("") == shelf.find("default") == shelf.find(" Guide ") == shelf.default
    elsewhere = homes.place(tiny("dense"), tmp_path / "elsewhere.gguf")
    for name in (
        str(elsewhere),
        str(mine / "chatty.gguf"),
        "../elsewhere.gguf",
        "~/elsewhere.gguf",
        "file:///etc/passwd",
        "/etc/passwd",
        "chatty\0",
        "x" * 100_000,
    ):
        with pytest.raises(ModelNotFound) as error:
            shelf.find(name)
        assert len(error.value.message) < 500
        assert error.value.hint


def test_a_model_with_a_projector_beside_it_sees(mine):
    homes.place(tiny("dense"), mine / "seer-Q8_0.gguf")
    homes.place(projector(), mine / "mmproj-seer-F16.gguf")
    sees = {card.id: card.sees for card in AvailableModels("guide").cards()}
    assert sees == {"guide": False, "chatty": False, "embedder": False, "seer-Q8_0": True}


def test_a_file_in_the_folder_of_the_server_takes_nobodys_name(mine, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("chatty").write_bytes(b"no model at all")
    found = AvailableModels("guide").find("chatty")
    assert Path(found.wanted) == mine / "chatty.gguf"


def test_what_could_be_pulled_is_named_with_the_command(mine):
    shelf = AvailableModels("guide")
    for name in ("qwen3.6-27b", "owner/some-model"):
        with pytest.raises(ModelNotFound, match="not on this machine") as error:
            shelf.find(name)
        assert error.value.hint == f"To download it: edgechat pull {name}"
    with pytest.raises(ModelNotFound, match="no model 'chatti'") as error:
        shelf.find("chatti")
    assert "Did you mean chatty? " in (error.value.hint or "")
    with pytest.raises(ModelNotFound, match="no model 'nonsense'"):
        shelf.find("nonsense")


def test_a_default_that_is_a_file_goes_by_its_name_and_is_there_once(mine):
    shelf = AvailableModels(str(mine / "chatty.gguf"))
    assert shelf.default.id == "chatty"
    assert shelf.find("edgechat/chatty") == shelf.default
    assert [card.id for card in shelf.cards()].count("chatty") == 1
    with pytest.raises(ModelNotFound):
        AvailableModels(str(mine / "nothing.gguf"))


def test_a_default_from_elsewhere_and_a_model_of_its_name_are_two(mine, tmp_path):
    shelf = AvailableModels(str(homes.place(tiny("dense"), tmp_path / "elsewhere" / "chatty.gguf")))
    assert shelf.find("chatty") == shelf.default
    other = shelf.find("edgechat/chatty")
    assert (other.id, other.path) == ("edgechat/chatty", mine / "chatty.gguf")
    cards = {card.id: card for card in shelf.cards()}
    assert list(cards) == ["chatty", "edgechat/chatty", "embedder", "guide"]
    assert cards["chatty"].size > 0
    assert facts(cards["chatty"]) == facts(cards["edgechat/chatty"])


@pytest.mark.parametrize("default", ["guide", "pirate", "ollama/plain:1b"])
def test_models_of_ollama_that_share_a_file_are_two_and_tags_of_one_are_one(mine, tmp_path, default):
    user = tmp_path / "user"
    homes.in_ollama(user, tiny("moe"), "pirate", system="Be a pirate.")
    homes.in_ollama(user, tiny("moe"), "plain:1b")
    homes.in_ollama(user, tiny("moe"), "qwen3-4b")
    shelf = AvailableModels(default)
    pirate, plain = shelf.find("pirate"), shelf.find("plain:1b")
    assert pirate.path == plain.path
    assert (pirate.id, plain.id) == ("ollama/pirate:latest", "ollama/plain:1b")
    # The catalogue's model of that name is not here.
    assert shelf.find("ollama/plain:1b") == shelf.find("qwen3-4b") == plain
    assert shelf.default.id in ("guide", pirate.id, plain.id)
    ids = [card.id for card in shelf.cards()]
    assert sorted(ids) == sorted({*ids, pirate.id, plain.id})


def test_what_ollama_keeps_beside_a_model_is_shown_as_it_shows_it(mine, tmp_path):
    params = {"stop": ["<|a|>", "\n"], "temperature": 0.6, "num_ctx": 4096}
    texts = {"system": "Be a pirate.", "template": "{{ .Prompt }}", "license": "Do it.\nAll of it."}
    homes.in_ollama(tmp_path / "user", tiny("moe"), "pirate", params=params, **texts)
    homes.in_ollama(tmp_path / "user", tiny("dense"), "odd", params=b"[1", license=b"\xff" * 2**19)
    shelf = AvailableModels("guide")
    shown = {name: ShownModelBody.of(shelf.card(shelf.find(name))) for name in ("guide", "pirate", "odd")}
    lines = ['stop "<|a|>"', 'stop "\\n"', "temperature 0.6", "num_ctx 4096"]
    told = shown["pirate"].parameters.split("\n")
    assert [" ".join(line.split()) for line in told] == lines
    assert {line.index(line.split()[1]) for line in told} == {31}
    assert {name: getattr(shown["pirate"], name) for name in texts} == texts
    for other in (shown["guide"], shown["odd"]):
        assert {getattr(other, name) for name in ("parameters", "system", "template", "license")} == {""}


def facts(card):
    return msgspec.structs.replace(card, id="", created=0)


def test_of_several_quantizations_each_is_there_beside_the_one_that_is_chosen(mine):
    for quant in ("Q4_K_M", "Q8_0"):
        homes.place(tiny("dense"), mine / f"Qwen3-8B-{quant}.gguf")
    shelf = AvailableModels("qwen3-8b")
    assert shelf.find("qwen3") == shelf.find("Qwen3-8B") == shelf.default
    for quant in ("Q4_K_M", "Q8_0"):
        found = shelf.find(f"qwen3-8b:{quant}")
        assert found.id == found.wanted == f"qwen3-8b:{quant}"
        assert found.id in {card.id for card in shelf.cards()}
    exact = AvailableModels("qwen3-8b:Q8_0")
    assert exact.find("qwen3-8b:q8_0") == exact.find("qwen3-8b") == exact.default
    assert exact.default.path == mine / "Qwen3-8B-Q8_0.gguf"


def test_the_cards(mine):
    homes.place(build(Spec(shape=BERT, name="short", seed=2)), mine / "a-second.gguf")
    (mine / "broken.gguf").write_bytes(b"GGUF, more or less")
    cards = {card.id: card for card in AvailableModels("guide").cards()}
    assert next(iter(cards)) == "guide"
    assert list(cards)[1:] == ["a-second", "chatty", "embedder"]
    assert (cards["chatty"].kind, cards["chatty"].context) == ("chat", 4096)
    assert (cards["embedder"].kind, cards["embedder"].context) == ("embedding", 512)
    assert cards["chatty"].created == int((mine / "chatty.gguf").stat().st_mtime)
    assert not any(card.loaded for card in cards.values())


async def test_the_first_model_is_that_of_the_app(mine):
    assert (await first_model()).model == "guide"
    store = await Store.open(store_path())
    await remember(store, "chatty")
    assert (await first_model()).model == "chatty"
    await remember(store, "gone")
    await store.close()
    choice = await first_model()
    assert (choice.model, choice.missing) == ("guide", "gone")
    settings.change("model", "chatty")
    assert (await first_model()).model == "chatty"
    assert (await first_model("guide")).model == "guide"
    settings.change("model", "gone, too")
    choice = await first_model()
    assert (choice.model, choice.note) == ("guide", "gone, too was not found; guide is used instead.")
    with pytest.raises(ModelNotFound):
        await first_model("gone")


@pytest.fixture
async def pools():
    made = []
    yield made
    for pool in made:
        await pool.close()


def _carries(n_bytes, monkeypatch):
    """Plan for a machine with so much memory, of which each worker takes what a tiny model does."""

    def look(*args):
        taken = 72 * MIB * len(workers())
        return replace(real(*args), memory=Memory(n_bytes, n_bytes - taken), accelerators=())

    real = machine.current_profile
    monkeypatch.setattr("edgechat.planner.machine.current_profile", look)
    monkeypatch.setattr(
        Calibration, "read", Calibration
    )  # loads so small teach that the program takes far less


async def reply(pool, model):
    async with pool.serve(model) as served:
        request = ChatRequest(id="r", messages=(Message("user", "hi"),), max_tokens=8)
        return "".join([event.text async for event in served.stream(request) if isinstance(event, Delta)])


async def embedding(pool, model):
    async with pool.serve(model) as served:
        assert served.model.embedding == 64
        found = await served.embed("r", ("hello",))
        return np.frombuffer(found.vectors[0], "<f4")


async def test_a_chat_and_an_embedding_model_where_both_fit(mine, pools, monkeypatch):
    _carries(400 * MIB, monkeypatch)
    pools.append(pool := real_pool("chatty"))
    first = await embedding(pool, "embedder")
    assert np.linalg.norm(first) == pytest.approx(1, abs=1e-5)
    assert await reply(pool, "")
    assert len(workers()) == 2
    assert pool.state == ("ready", "embedder and chatty are loaded.")
    cards = {card.id: card for card in pool.names()}
    assert cards["chatty"].loaded
    assert cards["embedder"].loaded
    assert not cards["guide"].loaded
    text = (await pool.metrics_text()).decode()
    assert 'edgechat_memory_planned_bytes{memory="RAM",model="embedder"}' in text
    assert 'edgechat_prompt_tokens_total{model="embedder"} 7.0' in text


async def test_of_two_files_of_one_name_each_answers_under_its_own(mine, pools):
    for folder in "xy":
        homes.place(tiny("dense"), mine / folder / "foo.gguf")
    pools.append(pool := real_pool("chatty"))
    assert {"foo", "edgechat/y/foo"} <= {card.id for card in pool.names()}
    async with pool.serve("edgechat/y/foo") as served:
        assert served.name == "edgechat/y/foo"
        assert served.plan.model_path == str(mine / "y" / "foo.gguf")
    assert pool.card("edgechat/y/foo").loaded
    assert not pool.card("foo").loaded


async def test_an_embedder_that_has_died_is_loaded_again_for_who_is_here(mine, pools):
    pools.append(pool := real_pool("chatty"))
    async with pool.serve("embedder") as served:
        (worker,) = workers()
        worker.kill()
        while pool.card("embedder").loaded:
            await asyncio.sleep(0.01)
        assert await served.embed("r", ("hello",)) is not None


async def test_a_chat_and_an_embedding_model_take_turns_where_only_one_fits(mine, pools, monkeypatch):
    _carries(110 * MIB, monkeypatch)
    pools.append(pool := real_pool("chatty"))
    first = await embedding(pool, "embedder")
    assert await reply(pool, "chatty")
    assert len(workers()) == 1
    assert np.array_equal(await embedding(pool, "embedder"), first)
    assert pool.state[1] == "embedder is loaded."


async def test_what_fits_nowhere_is_said(mine, pools, monkeypatch):
    _carries(40 * MIB, monkeypatch)
    pools.append(pool := real_pool("chatty"))
    with pytest.raises(DoesNotFit):
        await reply(pool, "")
    assert pool.state[0] == "degraded", "the default cannot be had"


async def test_only_the_default_is_loaded_although_it_does_not_fit(mine, pools, monkeypatch):
    _carries(40 * MIB, monkeypatch)
    pools.append(pool := real_pool("chatty", PlanRequest(anyway=True, context=512)))
    assert await reply(pool, "")
    with pytest.raises(DoesNotFit):
        await embedding(pool, "embedder")


async def test_a_damaged_model_is_no_trouble_of_the_server(mine, pools):
    (mine / "broken.gguf").write_bytes(b"GGUF" + bytes(500))
    pools.append(pool := real_pool("chatty"))
    with pytest.raises(ModelFileError):
        await reply(pool, "broken")
    assert pool.state[0] == "ready"
