"""Layers split over devices, from settings.toml to a reply: RPC servers on this machine stand for GPUs."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from edgechat import settings
from edgechat.engine.types import ChatRequest, Delta, Message, Sampling
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.native.params import LoadParams
from edgechat.planner.estimate import footprint
from edgechat.planner.estimate.budget import RAM
from edgechat.planner.estimate.rates import guessed
from edgechat.planner.prepare import prepare
from edgechat.planner.request import PlanRequest
from tests.kit import DENSE, KINDS, NOT_PRINTABLE, Spec, build
from tests.rpc_server import RpcServer

pytestmark = pytest.mark.slow

MIB = 2**20
LAYERS = 12
BIG = {"n_layers": LAYERS, "n_embd": 256, "n_ff": 1024}
"""Some 4 MiB a layer in F32."""
WISHES = PlanRequest(context=1024, threads=1)


@pytest.fixture(scope="module")
def dense():
    return build(Spec(shape=DENSE.sized(**BIG), name="split-dense", mute=NOT_PRINTABLE))


@pytest.fixture(scope="module")
def moe():
    return build(Spec(shape=KINDS["moe"].sized(**BIG), name="split-moe", mute=NOT_PRINTABLE))


@pytest.fixture
def two():
    with RpcServer(24 * MIB) as small, RpcServer(40 * MIB) as large:
        yield small, large


def with_servers(*servers):
    listed = ", ".join(f'"{server.address}"' for server in servers)
    settings.settings_file().write_text(f"rpc = [{listed}]\n")


async def reply(plan):
    """Return a few greedy tokens of the real worker, what it says of its load, and the plan it loaded by."""
    engine = EngineSupervisor(plan)
    request = ChatRequest(
        id="r",
        messages=(Message("user", "The quick brown fox jumps over the lazy dog."),),
        sampling=Sampling(temperature=0.0),
        max_tokens=12,
    )
    try:
        model = await engine.start()
        events = [event async for event in engine.stream(request)]
        return "".join(one.text for one in events if isinstance(one, Delta)), model, engine.plan
    finally:
        await engine.close()


def where_layers_are(plan):
    """Return llama.cpp's own word of a load by this plan, in a process of its own."""
    code = (
        "import sys, msgspec; from pathlib import Path; from edgechat.native.handles import Model;"
        "from edgechat.native.params import LoadParams; from tests.kit.layers import layer_devices;"
        "load = msgspec.json.decode(sys.argv[2], type=LoadParams);"
        "print(*layer_devices(Model(Path(sys.argv[1]), load)))"
    )
    params = msgspec.json.encode(LoadParams.of(plan)).decode()
    done = subprocess.run(
        [sys.executable, "-c", code, plan.model_path, params],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    return done.stdout.split()


def planned_places(plan, n_parts):
    placed = [name for name, count in zip(plan.devices, plan.split, strict=True) for _ in range(count)]
    return ["CPU"] * (n_parts - len(placed)) + placed


def holds(plan):
    """Return of each device the bytes that it is to hold and those that it may."""
    return {one.name: (one.total_bytes, one.budget_bytes) for one in plan.memory}


async def test_one_device_is_filled_and_the_rest_stays(dense):
    plain, _, _ = await reply(prepare(str(dense), WISHES))
    assert len(plain) > 5
    with RpcServer(40 * MIB) as server:
        with_servers(server)
        made = prepare(str(dense), WISHES)
        assert made.buffers
        assert made.devices == ("RPC0",)
        assert 0 < made.gpu_layers < LAYERS + 1
        taken, budget = holds(made)["RPC0"]
        assert budget - 5 * MIB < taken <= budget < server.memory
        text, model, loaded = await reply(made)
        assert (text, model.differences, loaded) == (plain, (), made)
        assert sum(server.allocations) <= budget
        assert -1 not in [size // abs(size) for size in server.allocations]
        assert where_layers_are(made) == planned_places(made, LAYERS + 1)


async def test_of_two_the_larger_is_filled_first(dense, two):
    plain, _, _ = await reply(prepare(str(dense), WISHES))
    with_servers(*two)
    made = prepare(str(dense), WISHES)
    small, large = "RPC0", "RPC1"
    assert made.devices == (small, large)  # the last layers are on the last
    assert made.split[1] > made.split[0] > 0
    held = holds(made)
    assert all(taken <= budget for taken, budget in held.values())
    assert held[large][1] - held[large][0] < 5 * MIB
    assert held[RAM][1] > held[large][1]
    text, model, _ = await reply(made)
    assert (text, model.differences) == (plain, ())
    assert {buffer.device for buffer in model.buffers} == {"CPU", small, large}
    assert where_layers_are(made) == planned_places(made, LAYERS + 1)


async def test_what_fits_on_the_larger_leaves_the_smaller_alone(two):
    few = build(Spec(shape=DENSE.sized(**BIG | {"n_layers": 3}), name="split-few", mute=NOT_PRINTABLE))
    with_servers(*two)
    made = prepare(str(few), WISHES)
    assert (made.devices, made.split) == (("RPC1",), (4,))
    assert two[0].allocations == []
    _, model, _ = await reply(made)
    assert model.differences == ()


@pytest.mark.usefixtures("measured")
async def test_experts_stay_in_ram_where_a_card_is_faster(moe, monkeypatch):
    plain, _, _ = await reply(prepare(str(moe), WISHES))
    monkeypatch.setattr(
        footprint, "rate_of_card", lambda card, slow, measured: guessed(20 * slow.bandwidth, 1e13)
    )
    with RpcServer(100 * MIB) as server:
        with_servers(server)
        made = prepare(str(moe), WISHES)
        assert made.buffers
        assert made.gpu_layers == LAYERS + 1
        assert 0 < made.experts_in_ram < LAYERS
        taken, budget = holds(made)["RPC0"]
        assert taken <= budget
        text, model, _ = await reply(made)
        assert (text, model.differences) == (plain, ())
        assert where_layers_are(made) == ["RPC0"] * (LAYERS + 1)


async def test_a_device_that_was_filled_meanwhile(dense):
    """Another program took its memory between plan and load: fewer layers go there, and that is told."""
    with RpcServer(40 * MIB) as server:
        with_servers(server)
        made = prepare(str(dense), WISHES)
    settings.settings_file().write_text("")
    told = []
    with RpcServer(20 * MIB) as server:
        with_servers(server)
        engine = EngineSupervisor(msgspec.structs.replace(made, rpc=(server.address,)), on_note=told.append)
        try:
            model = await engine.start()
        finally:
            await engine.close()
    assert told
    assert engine.plan.gpu_layers < made.gpu_layers
    assert model.differences == ()


def test_a_server_that_is_gone_is_told_and_done_without(dense):
    with RpcServer(24 * MIB) as server:
        address = server.address
        with_servers(server)
    made = prepare(str(dense), WISHES)
    assert (made.devices, made.rpc) == ((), ())
    (note,) = made.notes
    assert f"No llama.cpp server answers at {address}" in note
    assert "without the RPC servers that settings.toml names" in note
