"""Pulls in the background of the app, from the tests' own hub."""

import asyncio
from dataclasses import replace

import pytest
from filelock import FileLock

from edgechat.base.errors import DiskError, DoesNotFit, EngineError, HubUnreachable, OfflineMode, WrongBytes
from edgechat.models.choices import RemoteFile
from edgechat.models.hub.cache import HubStore
from edgechat.models.hub.listing import resolve_remote
from edgechat.models.hub.names import HubName
from edgechat.models.local.resolve import resolve
from edgechat.planner.ranking.pulling import PullDecision
from edgechat.tui.models.library import ModelLibrary
from edgechat.tui.models.pulls import Pulls, PullState
from tests.cli.pulling import REPO, partial, sized
from tests.hub import Fault
from tests.kit import tiny

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured")]

SLOW = Fault(pause=0.01, piece=1 << 14)


@pytest.fixture
async def pulls(hub, hf_cache):
    made = Pulls(ModelLibrary.real())
    yield made
    await made.close()


async def until(true):
    while not true():
        await asyncio.sleep(0.01)


async def over(pull):
    await until(lambda: pull.is_over)


async def test_a_model_is_brought_and_can_be_named(hub, pulls):
    hub.add(REPO, {"tiny-F32.gguf": sized(2_000_000)})
    hub.fail("store", SLOW)
    done = []
    seen = []
    lines = set()

    def heard(one):
        seen.append(one.state)
        lines.add(pulls.line())

    pulls.on_done = done.append
    pulls.listen(heard)
    pull = pulls.start(REPO)
    assert pulls.start(REPO) is pull
    await over(pull)
    assert (pull.state, pull.error, done) == (PullState.DONE, None, [pull])
    found = list(dict.fromkeys(seen))
    assert found == [PullState.WAITING, PullState.ASKING, PullState.DOWNLOADING, PullState.DONE]
    assert any(f"{REPO} asking the hub for {REPO}" in line for line in lines)
    assert any("% " in line and "of 2 MiB" in line for line in lines)
    assert pulls.line() == ""
    assert pull.model is not None
    assert resolve(pull.model).path.stat().st_size == 2_000_000


async def test_stopped_and_gone_on_with(hub, pulls, hf_cache):
    hub.add(REPO, {"tiny-F32.gguf": sized(4_000_000)})
    hub.fail("store", SLOW)
    pull = pulls.start(REPO)
    await until(lambda: partial(hf_cache) > 300_000)
    pulls.stop(pull)
    await over(pull)
    assert pull.state is PullState.STOPPED
    assert pull.line.startswith("stopped at ")
    kept = partial(hf_cache)
    assert kept > 300_000
    hub.mend()
    again = pulls.retry(pull)
    await over(again)
    assert again.state is PullState.DONE
    assert pulls.all == [again]
    assert kept in {one.range[0] for one in hub.requests("store") if one.range}


async def test_the_end_of_the_app_keeps_what_came(hub, pulls, hf_cache):
    hub.add(REPO, {"tiny-F32.gguf": sized(4_000_000)})
    hub.fail("store", SLOW)
    pull, waiting = pulls.start(REPO), pulls.start("owner/other")
    await until(lambda: partial(hf_cache) > 100_000)
    await pulls.close()
    await asyncio.sleep(0)
    assert (waiting.state, pull.state) == (PullState.STOPPED, PullState.STOPPED)
    assert partial(hf_cache) > 100_000


async def test_a_wait_for_the_next_try_is_no_reason_to_wait(hub, pulls):
    """The hub asks for five minutes; someone who stops the pull does not."""
    hub.add(REPO, {"tiny-F32.gguf": sized(4_000_000)})
    hub.fail("resolve", Fault(status=429, headers={"Retry-After": "300"}, after=1))
    pull = pulls.start(REPO)
    await until(lambda: "Trying again in 300 s" in pull.line)
    pulls.stop(pull)
    await over(pull)
    assert pull.state is PullState.STOPPED


async def test_another_program_that_downloads_it_is_no_reason_to_wait(hub, pulls):
    repo = hub.add(REPO, {"tiny-F32.gguf": tiny()})
    store = HubStore(resolve_remote(HubName(REPO), offline=False).listing)
    file = RemoteFile("tiny-F32.gguf", tiny().stat().st_size, repo.sha256("tiny-F32.gguf"))
    store.make_folders(file)
    with FileLock(store.lock(file)):
        pull = pulls.start(REPO)
        await until(lambda: "Another program is downloading" in pull.line)
        pulls.stop(pull)
        await over(pull)
        assert pull.state is PullState.STOPPED
    again = pulls.retry(pull)
    await over(again)
    assert again.state is PullState.DONE


async def test_one_at_a_time(hub, pulls):
    hub.add(REPO, {"tiny-F32.gguf": sized(2_000_000)})
    hub.add("owner/other", {"other-F32.gguf": tiny()})
    hub.fail("store", SLOW)
    first, second, third = (pulls.start(name) for name in (REPO, "owner/other", "owner/third"))
    assert (second.state, second.line) == (PullState.WAITING, "waiting for the previous download")
    await until(lambda: first.state is PullState.DOWNLOADING)
    assert pulls.line().endswith(", 2 more")
    pulls.stop(third)
    await over(second)
    assert (first.state, second.state, third.state) == (PullState.DONE, PullState.DONE, PullState.STOPPED)
    pulls.forget(third)
    assert pulls.all == [first, second]


async def test_wrong_bytes(hub, pulls):
    hub.add(REPO, {"tiny-F32.gguf": tiny()})
    hub.fail("store", Fault(body=bytes(tiny().stat().st_size), after=1))
    pull = pulls.start(REPO)
    await over(pull)
    assert isinstance(pull.error, WrongBytes)
    assert "failed: The download of tiny-F32.gguf" in pull.line
    hub.mend()
    again = pulls.retry(pull)
    await over(again)
    assert again.state is PullState.DONE


@pytest.mark.usefixtures("no_waits")
async def test_a_hub_that_is_not_there(hub, pulls):
    hub.stop()
    pull = pulls.start(REPO)
    await over(pull)
    assert isinstance(pull.error, HubUnreachable)


async def test_offline(hub, pulls, monkeypatch):
    monkeypatch.setenv("EDGECHAT_OFFLINE", "1")
    assert ModelLibrary.real().offline() == "EDGECHAT_OFFLINE"
    pull = pulls.start(REPO)
    await over(pull)
    assert isinstance(pull.error, OfflineMode)
    assert not hub.seen


async def test_a_full_disk(hub, pulls, small_disk):
    hub.add(REPO, {"tiny-F32.gguf": sized(3_000_000)})
    pull = pulls.start(REPO)
    await over(pull)
    assert isinstance(pull.error, DiskError)
    assert "2 MiB free" in pull.line


async def test_what_does_not_fit_comes_only_where_someone_insists(hub, hf_cache):
    hub.add(REPO, {"tiny-F32.gguf": tiny()})
    real = ModelLibrary.real()

    def decide(*words):
        found = real.decide(*words)
        assert isinstance(found, PullDecision)
        assert found.picked is not None
        large = replace(found.picked, plan=None, why_not="It needs more.", instead="guide")
        return replace(found, picked=large)

    pulls = Pulls(replace(real, decide=decide))
    pull = pulls.start(REPO)
    await over(pull)
    assert isinstance(pull.error, DoesNotFit)
    assert (pull.error.message, pull.error.hint) == ("It needs more.", "guide would fit.")
    again = pulls.retry(pull, anyway=True)
    await over(again)
    assert again.state is PullState.DONE
    await pulls.close()


async def test_a_fault_of_ours_ends_the_pull_and_not_the_app(hub, hf_cache):
    def decide(*_):
        raise ZeroDivisionError("never")

    pulls = Pulls(replace(ModelLibrary.real(), decide=decide))
    pull = pulls.start(REPO)
    await over(pull)
    assert isinstance(pull.error, EngineError)
    assert "ZeroDivisionError" in pull.line
