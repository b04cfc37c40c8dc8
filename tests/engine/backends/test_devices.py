"""Layers on devices, through the backend and a real worker: the same text, and an end when a device goes.

The devices are RPC servers on this machine, which llama.cpp treats as GPUs.
"""

import signal
import sys
import threading

import numpy as np
import pytest

from edgechat.base.errors import EngineCrashed, ServerRefused
from edgechat.engine.backends.base import BatchPart
from edgechat.engine.backends.llama_cpp import LlamaCppBackend
from edgechat.engine.engine import EngineCore
from edgechat.engine.prompt.template import ChatTemplate
from edgechat.engine.types import ChatRequest, Delta, Message, Sampling
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.models.formats.gguf import read_model
from edgechat.native.params import N_CANDIDATES, LoadParams
from edgechat.planner.plan import LoadPlan
from tests.kit import KINDS, NOT_PRINTABLE, tiny
from tests.planner.headers import dry_run
from tests.rpc_server import RpcServer

pytestmark = pytest.mark.slow

Servers = tuple[RpcServer, RpcServer]
KINDS_HERE = ("dense", "windowed", "hybrid", "moe")
QUESTION = (Message("user", "The quick brown fox jumps over the lazy dog. " * 12),)


def plan(path, **changes):
    fields = {"context": 1024, "threads": 1, "flash_attention": False, "n_ubatch": 64, "n_seq_max": 3}
    return LoadPlan(model_path=str(path), model_name=path.stem, **fields | changes)


@pytest.fixture
def on_devices(servers):
    return {"devices": ("RPC0", "RPC1"), "rpc": tuple(server.address for server in servers)}


def text(path, **changes):
    backend = LlamaCppBackend(plan(path, **changes))
    engine = EngineCore(backend, ChatTemplate(backend.chat_template))
    try:
        engine.submit(ask("r", 40))
        found = ""
        while not engine.is_idle:
            found += "".join(event.text for event in engine.step() if isinstance(event, Delta))
        return found
    finally:
        engine.close()


@pytest.mark.parametrize("kind", KINDS_HERE)
def test_the_text_is_the_processors(kind, on_devices):
    path = tiny(kind, mute=NOT_PRINTABLE)
    n_layers = KINDS[kind].n_layers
    expected = text(path)
    assert len(expected) > 20
    for split in ((1, 0), (1, 1), (1, n_layers)):
        assert text(path, split=split, **on_devices) == expected
    if kind == "moe":
        assert text(path, split=(1, n_layers), experts_in_ram=1, **on_devices) == expected


def logits(made, tokens):
    """Return the last rows of each of four batches: [16, n_vocab]."""
    backend = LlamaCppBackend(made)
    try:
        parts = [BatchPart(0, at, tokens[at : at + 50], 4) for at in range(0, 200, 50)]
        return np.concatenate([np.array(backend.decode([part])) for part in parts])
    finally:
        backend.close()


@pytest.mark.parametrize("flash_attention", [False, True])
@pytest.mark.parametrize("kind", KINDS_HERE)
def test_the_logits_are_the_processors(kind, flash_attention, on_devices):
    """The server computes with the same kernels: what differs is only the order of sums, if anything."""
    tokens = tuple(int(one) for one in np.random.default_rng(1).integers(3, 250, 200))
    expected = logits(plan(tiny(kind), flash_attention=flash_attention), tokens)
    on_both = {"split": (1, KINDS[kind].n_layers)} | on_devices
    found = logits(plan(tiny(kind), flash_attention=flash_attention, **on_both), tokens)
    assert np.abs(expected).max() > 4
    assert np.abs(found - expected).max() < 1e-3


@pytest.mark.skipif(sys.platform == "win32", reason="SIGSTOP")
def test_a_call_without_rows_waits_for_the_device(servers, opened):
    """Otherwise the cost of calls is unknown, and they pile up before the first call with rows."""
    rpc = tuple(server.address for server in servers)
    backend = opened(
        LlamaCppBackend(plan(tiny("dense"), devices=("RPC0",), split=(KINDS["dense"].n_layers + 1,), rpc=rpc))
    )
    backend.decode([BatchPart(0, 0, (5,) * 16, 0)])
    server = servers[0].process
    server.send_signal(signal.SIGSTOP)
    call = threading.Thread(target=backend.decode, args=([BatchPart(0, 16, (5,) * 16, 0)],))
    call.start()
    call.join(0.5)
    waited = call.is_alive()
    server.send_signal(signal.SIGCONT)
    call.join()
    assert waited


def ask(name, max_tokens=8):
    return ChatRequest(id=name, messages=QUESTION, sampling=Sampling(temperature=0), max_tokens=max_tokens)


@pytest.fixture
def two():
    """Servers that the test may kill; only workers know them."""
    with RpcServer(48 << 20) as large, RpcServer(16 << 20) as small:
        yield large, small


def spread(path, servers):
    """Return a plan with a layer and the output on the devices, and what the dry run says it takes."""
    made = plan(path, devices=("RPC0", "RPC1"), split=(1, 1), rpc=tuple(server.address for server in servers))
    (told,) = dry_run(read_model(path), [LoadParams.of(made)])
    fields = {name: getattr(made, name) for name in LoadPlan.__struct_fields__}
    return LoadPlan(**fields | {"buffers": told.buffers})


def many(**changes):
    """Return a model with so many tokens that another machine sends the highest logits alone."""
    return tiny("dense", n_vocab=4096, logit_scale=1.0, mute=NOT_PRINTABLE, **changes)


def all_on(servers):
    rpc = tuple(server.address for server in servers)
    return {"devices": ("RPC0",), "split": (KINDS["dense"].n_layers + 1,), "rpc": rpc}


def test_a_device_elsewhere_sends_what_is_looked_at(servers, opened):
    backend = opened(LlamaCppBackend(plan(many(), **all_on(servers))))

    def rows(*wanted, at):
        parts = [
            BatchPart(seq, at, (5 + seq, 9, at % 200 + 7), n, n_candidates) for seq, n, n_candidates in wanted
        ]
        return np.array(backend.decode(parts))

    def whole(*wanted, at):
        for seq, *_ in wanted:
            assert backend.truncate(seq, at)
        return rows(*((seq, n, 0) for seq, n, _ in wanted), at=at)

    for at, wanted in (
        (0, ((0, 1, 40), (1, 3, 1))),
        (3, ((1, 2, 20), (0, 1, 40))),
        (6, ((0, 1, 0), (1, 1, 40), (2, 0, 0))[:2]),
        (9, ((1, 1, 40), (0, 2, 64))),
        (12, ((0, 1, N_CANDIDATES + 1), (1, 1, 1))),
    ):
        found = rows(*wanted, at=at)
        expected = whole(*wanted, at=at)
        has_all = any(n and not 0 < n_candidates <= N_CANDIDATES for _, n, n_candidates in wanted)
        for row, true in zip(found, expected, strict=True):
            likeliest = np.argsort(-true, kind="stable")[: len(true) if has_all else 100]
            assert (row[likeliest] == true[likeliest]).all()
            assert np.isfinite(row).sum() == (len(true) if has_all else N_CANDIDATES)


def test_sampling_is_the_processors_however_logits_come(servers):
    """Requests that need all logits get them: no top-k, penalties, logprobs, a grammar."""
    requests = [
        ChatRequest(id=str(number), messages=QUESTION, max_tokens=12, **fields)
        for number, fields in enumerate(
            (
                {"sampling": Sampling(seed=1)},
                {"sampling": Sampling(seed=2, top_k=0)},
                {"sampling": Sampling(temperature=0), "logprobs": 2},
                {"sampling": Sampling(seed=3, top_k=100, top_p=1.0, min_p=0.0, temperature=1.5)},
                {"sampling": Sampling(seed=4, presence_penalty=1.0)},
                {"sampling": Sampling(temperature=0)},
                {"sampling": Sampling(seed=5), "schema": '{"type": "object"}'},
            )
        )
    ]

    def answers(together, **changes):
        backend = LlamaCppBackend(plan(many(), ngrams=True, n_outputs_max=16, **changes))
        engine = EngineCore(backend, ChatTemplate(backend.chat_template), ngrams=True)
        texts = dict.fromkeys((request.id for request in requests), "")
        try:
            for group in [requests] if together else [[request] for request in requests]:
                for request in group:
                    engine.submit(request)
                while not engine.is_idle:
                    for event in engine.step():
                        if isinstance(event, Delta):
                            texts[event.request_id] += event.text
            return texts
        finally:
            engine.close()

    expected = answers(together=False)
    assert len(set(expected.values())) == len(requests) - 1  # two take the likeliest tokens
    for together in (False, True):
        assert answers(together, **all_on(servers)) == expected


async def test_memory_for_candidates_is_planned(two):
    rows = {"n_outputs_max": 8, "flash_attention": True}
    made = plan(many(), **rows, **all_on(two))
    (told,) = dry_run(read_model(many()), [LoadParams.of(made)])
    (plain,) = dry_run(read_model(many()), [LoadParams.of(plan(many(), **rows))])
    assert told.output == plain.output + 8 * (12 * 4096 + 4)
    fields = {name: getattr(made, name) for name in LoadPlan.__struct_fields__}
    engine = EngineSupervisor(LoadPlan(**fields | {"buffers": told.buffers}))
    try:
        model = await engine.start()
        reply = "".join([e.text async for e in engine.stream(ask("r")) if isinstance(e, Delta)])
    finally:
        await engine.close()
    assert {buffer.name: buffer for buffer in model.buffers} == {b.name: b for b in told.buffers}
    assert reply


@pytest.mark.parametrize("kind", KINDS_HERE)
async def test_a_worker_takes_on_each_device_what_was_planned(kind, two):
    made = spread(tiny(kind, mute=NOT_PRINTABLE), two)
    engine = EngineSupervisor(made)
    try:
        model = await engine.start()
        reply = "".join([e.text async for e in engine.stream(ask("r")) if isinstance(e, Delta)])
    finally:
        await engine.close()
    assert {buffer.name: buffer for buffer in model.buffers} == {b.name: b for b in made.buffers}
    assert {buffer.device for buffer in model.buffers} == {"CPU", "RPC0", "RPC1"}
    assert len(reply) > 4


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_server_that_dies_ends_the_reply(victim, two, running):
    """llama.cpp ends the worker; the front end says so, and at the next try what is missing."""
    engine = running(EngineSupervisor(spread(tiny(mute=NOT_PRINTABLE), two)))
    killed = False

    async def listen():
        nonlocal killed
        async for event in engine.stream(ask("r", max_tokens=400)):
            if isinstance(event, Delta) and not killed:
                two[victim].kill()
                killed = True

    with pytest.raises(EngineCrashed) as crash:
        await listen()
    assert "RPC server crashed" in crash.value.log_tail
    with pytest.raises(ServerRefused, match=two[victim].address):
        await engine.start()
