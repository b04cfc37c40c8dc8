"""Workers die until a hundred answers are cut, each at another moment: what was shown is in the store."""

import asyncio
import random
import signal

import pytest

from edgechat.base.errors import EngineCrashed, RemoteWorkerLost
from edgechat.chat.generation_options import CommandLineOptions
from edgechat.chat.session import ChatSession, SessionServices
from edgechat.chat.storage.store import Store, store_path
from edgechat.device.cpu import read_cpu
from edgechat.device.speed import store_speed
from edgechat.engine.types import Delta
from edgechat.planner.request import PlanRequest
from tests.kit import DENSE, NOT_PRINTABLE, Spec, build
from tests.remote.conftest import measured

pytestmark = pytest.mark.soak

BATCHES, DEATHS = 4, 25
MOST_SECONDS = 2.0


def _kill(_sshd, worker):
    worker.send_signal(signal.SIGKILL)


def _stop(_sshd, worker):
    worker.send_signal(signal.SIGSTOP)


def _cut(sshd, _worker):
    sshd.cut()


WAYS = (_kill, _stop, _cut)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("batch", range(BATCHES))
async def test_no_word_is_lost(sshd, batch):
    shape = DENSE.sized(n_layers=12, n_embd=256, n_ff=1024)
    model = build(Spec(shape=shape, name="split-dense", mute=NOT_PRINTABLE))
    store_speed(measured(1e8, 1e10), read_cpu())  # on a busy machine too, the worker is the faster one
    rng, n_cut, number = random.Random(batch), 0, 0
    while n_cut < DEATHS:
        n_cut += await _one_death(sshd, model, rng, number)
        number += 1
        print(f"batch {batch}: {number} deaths, {n_cut} answers cut", flush=True)


async def _one_death(sshd, model, rng, number):
    """Let a worker die; return whether an answer was cut by it."""
    address = sshd.worker(f"{number:03d}")
    services = SessionServices.real(PlanRequest(context=4096, draft="none", workers=(address,)))
    session = ChatSession(services, str(model), options=CommandLineOptions(max_tokens=400))
    try:
        engine = await session.engine()
        assert engine.plan.devices == ("RPC0",)
        await engine.start()
        (worker,) = sshd.workers(f"{number:03d}")
        conversation = await session.begin()
        after, way = rng.uniform(0, MOST_SECONDS), WAYS[number % len(WAYS)]
        # It goes on saying something until it is struck.
        shown, cut = "", False
        striking = asyncio.get_running_loop().call_later(after, way, sshd, worker)
        while not cut:
            await conversation.ask("The quick brown fox jumps over the lazy dog.")
            shown = ""
            try:
                async for event in session.answer(conversation):
                    if isinstance(event, Delta):
                        shown += event.text
            except RemoteWorkerLost:
                cut = True
            except EngineCrashed as error:
                raise AssertionError(f"{number}: {error.message}") from error
            if engine.plan.devices == ():  # it was lost between two answers
                break
        striking.cancel()
        chat = conversation.chat.id
        if cut:
            # A store of its own sees what is on the disk.
            store = await Store.open(store_path())
            try:
                _, turns = await store.load(chat)
            finally:
                await store.close()
            assert turns[-1].content == shown
        session.options = CommandLineOptions(max_tokens=8)
        await conversation.ask("Are you there?")
        text = ""
        async for event in session.answer(conversation):
            text += event.text if isinstance(event, Delta) else ""
        assert text
        assert engine.plan.devices == ()
        return cut
    finally:
        await session.close()
        for left in sshd.workers(f"{number:03d}"):  # stopped ones
            left.kill()
