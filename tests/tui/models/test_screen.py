"""The models screen: what it shows, and what one does there."""

import asyncio
import time
from dataclasses import replace

import msgspec
import pytest

from edgechat.base import paths
from edgechat.base.errors import HubUnreachable, SettingsError
from edgechat.base.process.owner import this_process
from edgechat.models.choices import ModelChoice
from edgechat.models.local.inventory import inventory
from edgechat.models.local.locations import Place
from edgechat.models.request import parse_request
from edgechat.planner.listing import rows
from edgechat.planner.ranking.download_choice import DownloadChoice, RepoSource
from edgechat.planner.ranking.pulling import PullDecision, PullPart
from edgechat.planner.ranking.scoring import Verdict
from edgechat.tui.models.items import ModelGroup
from edgechat.tui.models.library import ModelLibrary
from edgechat.tui.models.pull import PullState
from edgechat.tui.models.pulls import Pulls
from edgechat.tui.models.screen import ModelsScreen
from tests import homes
from tests.cli.pulling import REPO, partial, sized
from tests.hub import Fault
from tests.kit import tiny
from tests.tui.driving import text_of, until
from tests.tui.libraries import GIB, Fake, Stage, entry, option, row

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured")]

SLOW = Fault(pause=0.01, piece=1 << 14)
SMALL, MID, HUGE = entry("small-1b", 2), entry("mid-8b", 4), entry("huge-70b", 6)


def stage(fake, current=None, **others):
    return Stage(fake.library(**others), lambda library, pulls: ModelsScreen(library, pulls, current))


def world(tmp_path):
    """Return a catalogue of three, of which one is here, and two models of other tools."""
    small = tmp_path / "small.gguf"
    here = row("small-1b", small, of=SMALL, used=time.time() - 7200)
    return Fake(
        rows=[
            here,
            row("broken", tmp_path / "broken.gguf", damage="It is a web page."),
            row("ollama/llama3.2:3b", tmp_path / "blob", place=Place.OLLAMA),
        ],
        entries=[HUGE, MID, SMALL],
        best=[
            option("mid-8b", size=3 * GIB, of=MID, tps=12.3),
            option("small-1b", of=SMALL, path=small, worth=0.5),
            option("huge-70b", size=40 * GIB, verdict=Verdict.TOO_LARGE, of=HUGE),
        ],
        local={small: option("small-1b", of=SMALL, tps=41.0, path=small)},
        surveys={
            "huge-70b": [option("huge-70b", size=40 * GIB, verdict=Verdict.TOO_LARGE, of=HUGE)],
            "mid-8b": [
                option("mid-8b", "Q8_0", 8 * GIB, verdict=Verdict.TOO_LARGE, of=MID),
                option("mid-8b", "Q4_K_M", 3 * GIB, of=MID, tps=12.3),
                option("mid-8b", "Q3_K_M", 2 * GIB, verdict=Verdict.POOR, of=MID, tps=15),
            ],
        },
    )


def told(pilot):
    return "\n".join(note.message for note in pilot.app._notifications)


def line(pilot, name):
    return next(found for found in text_of(pilot).splitlines() if name in found[:24])


async def at(pilot, name):
    """Go to the line of a model, once the screen is full."""
    await until(pilot, lambda: isinstance(pilot.app.screen, ModelsScreen))
    models = pilot.app.screen._models
    await until(pilot, lambda: models.overview is not None and not models.is_loading)
    for _ in range(20):
        item = pilot.app.screen._browser.item
        if item is not None and item.name == name:
            await pilot.pause()
            return
        await pilot.press("down")
    raise AssertionError(text_of(pilot))


@pytest.mark.parametrize("width", [60, 100, 160])
async def test_the_list(tmp_path, width):
    app = stage(world(tmp_path), "small-1b")
    async with app.run_test(size=(width, 40)) as pilot:
        await until(pilot, lambda: "~12" in text_of(pilot))
        text = "\n".join(found.split("▏")[0] for found in text_of(pilot).splitlines())
        assert text.index("On this machine") < text.index("small-1b") < text.index("broken")
        assert text.index("llama3.2:3b") < text.index("For download") < text.index("mid-8b")
        assert text.index("★ mid-8b") < text.index("huge-70b")
        assert line(pilot, "● small-1b").split()[2:7] == ["Q4_K_M", "2.0", "GiB", "fits", "~41"]
        assert "! broken" in text
        assert "damaged" in line(pilot, "broken")
        assert line(pilot, "mid-8b").split()[2:7] == ["Q4_K_M", "3.0", "GiB", "fits", "~12"]
        assert "too large" in line(pilot, "huge-70b")
        assert ("4 of 6" in line(pilot, "mid-8b")) == (width > 60)
        assert ("Ollama" in line(pilot, "llama3.2")) == (width > 60)
        assert all(len(one) <= width for one in text.splitlines())
        await at(pilot, "huge-70b")
        assert "huge-70b needs 99 GiB" in text_of(pilot)


async def test_the_list_is_there_before_the_machine_was_looked_at(tmp_path):
    fake = world(tmp_path)
    fake.gate.clear()
    app = stage(fake)
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "huge-70b" in text_of(pilot))
        assert "Inspecting this machine…" in text_of(pilot)
        for _ in range(3):
            await pilot.press("down")
        fake.gate.set()
        await until(pilot, lambda: "~12" in text_of(pilot))
        assert "Looking" not in text_of(pilot).splitlines()[0]
        assert pilot.app.screen._browser.item.name == "huge-70b"


async def test_a_speed_that_was_measured_is_marked_as_such(tmp_path):
    fake = world(tmp_path)
    fake.measured = True
    app = stage(fake)
    async with app.run_test(size=(100, 40)) as pilot:
        await at(pilot, "small-1b")
        assert " 41 " in line(pilot, "small-1b")
        assert "~12" in line(pilot, "mid-8b")


async def test_what_is_loaded_is_in_use_and_not_too_large(tmp_path):
    """Its own memory is not free, so that it would seem not to fit."""
    fake = world(tmp_path)
    small = fake.rows[0]
    assert small.use is not None
    used = msgspec.structs.replace(small.use, by=(this_process(),))
    fake.rows = [replace(small, use=used), *fake.rows[1:]]
    fake.local = {
        small.model.path: option("small-1b", verdict=Verdict.TOO_LARGE, of=SMALL, path=small.model.path)
    }
    app = stage(fake)
    async with app.run_test(size=(100, 40)) as pilot:
        await at(pilot, "small-1b")
        assert "in use" in line(pilot, "small-1b")
        assert "loaded" in line(pilot, "small-1b")
        assert "too large" not in line(pilot, "small-1b")


async def test_what_is_known_of_one(tmp_path):
    app = stage(world(tmp_path))
    async with app.run_test(size=(160, 40)) as pilot:
        await at(pilot, "mid-8b")
        await until(pilot, lambda: "Q3_K_M" in text_of(pilot))
        text = text_of(pilot)
        for words in (
            "mid-8b, by the tests.",
            "MIT · owner/mid-8b-GGUF",
            "Recommended",
            "RAM 4.2 GiB of 16.0 GiB",
            "█ weights 3.0 GiB",
            "▓ cache 1.0 GiB",
            "▒ compute 256 MiB",
            "· free 11.8 GiB",
            "~12 tokens/s, the first after 10 s",
            "8,192 tokens",
            "Quality  good",
            "n-grams",
        ):
            assert words in text, words
        ladder = [found.split("▏")[-1].strip() for found in text.splitlines() if "Q3_K_M" in found]
        assert ladder[0].split() == ["Q3_K_M", "2.0", "GiB", "~15", "0.028", "too", "lossy"]
        assert "nats" not in text
        await pilot.press("w")
        await pilot.pause()
        assert "• The best that fits here." in text_of(pilot)
        assert "Loses 0.028 nats: a table." in text_of(pilot)
        assert "• mid-8b Q8_0: It does not fit." in text_of(pilot)
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, ModelsScreen)
        await pilot.press("escape")
        await until(pilot, lambda: app.results == [None])


async def test_a_model_outside_the_known_places_is_listed_while_it_answers(hf_cache, tmp_path):
    path = tmp_path / "elsewhere" / "mine.gguf"
    path.parent.mkdir()
    path.symlink_to(tiny())
    app = stage(world(tmp_path), str(path), inventory=ModelLibrary.real().inventory)
    async with app.run_test(size=(100, 40)) as pilot:
        await at(pilot, "mine")
        assert line(pilot, "mine").startswith(" ● mine")
        await pilot.press("enter")
        await until(pilot, lambda: app.results == [str(path)])


async def test_enter_chats_with_what_is_here(tmp_path):
    app = stage(world(tmp_path))
    async with app.run_test(size=(100, 40)) as pilot:
        await at(pilot, "broken")
        await pilot.press("enter")
        await until(pilot, lambda: told(pilot) == "It is a web page.")
        await pilot.press("up")
        await at(pilot, "small-1b")
        assert "Chat" in text_of(pilot).splitlines()[-1]
        await pilot.press("enter")
        await until(pilot, lambda: app.results == ["small-1b"])


async def test_the_mouse(tmp_path):
    app = stage(world(tmp_path))
    async with app.run_test(size=(100, 40)) as pilot:
        await at(pilot, "small-1b")
        y = next(n for n, found in enumerate(text_of(pilot).splitlines()) if "llama3.2:3b" in found)
        await pilot.click(offset=(10, y))
        await pilot.pause()
        assert (app.results, pilot.app.screen._browser.item.name) == (
            [],
            "ollama/llama3.2:3b",
        )
        await pilot.click(offset=(10, y))
        await until(pilot, lambda: app.results == ["ollama/llama3.2:3b"])


async def test_a_filter(tmp_path):
    app = stage(world(tmp_path))
    async with app.run_test(size=(100, 40)) as pilot:
        await at(pilot, "small-1b")
        await pilot.press("slash", *"ollama")
        await pilot.pause()
        assert "llama3.2" in text_of(pilot)
        assert "mid-8b" not in text_of(pilot)
        await pilot.press(*"xx")
        await pilot.pause()
        assert "No model matches 'ollamaxx'" in text_of(pilot)
        await pilot.press("backspace", "backspace", "down", "enter")
        await until(pilot, lambda: app.results == ["ollama/llama3.2:3b"])


async def test_escape_leaves_the_filter_first(tmp_path):
    app = stage(world(tmp_path))
    async with app.run_test(size=(60, 20)) as pilot:
        await at(pilot, "small-1b")
        await pilot.press("slash", *"huge", "escape")
        await pilot.pause()
        assert "mid-8b" in text_of(pilot)
        await pilot.press("tab")
        await pilot.pause()
        assert "For download" not in text_of(pilot), "a low screen shows one pane"
        await pilot.press("escape", "escape")
        await until(pilot, lambda: app.results == [None])


async def test_what_is_wrong_is_said_and_the_list_stays(tmp_path):
    fake = world(tmp_path)
    fake.problem = SettingsError("settings.toml is odd.", hint="Mend it.")
    app = stage(fake)
    async with app.run_test(size=(60, 30)) as pilot:
        await until(pilot, lambda: "settings.toml is odd. Mend it." in text_of(pilot))
        assert "small-1b" in text_of(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: app.results == ["small-1b"])


async def test_names_of_strangers_are_inert(tmp_path):
    fake = Fake(rows=[row("ev\x1b[31mil [bold]x\n", tmp_path / "e.gguf")])
    app = stage(fake)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "ev[31mil [bold]x" in text_of(pilot))
        assert "\x1b" not in text_of(pilot)


# Pulling


def catalogue_of_the_hub(hub, size=2_000_000):
    """Return a catalogue of one model, which the hub has."""
    hub.add("owner/mid-8b-GGUF", {"mid-8b-Q4_K_M.gguf": sized(size), "mid-8b-Q3_K_M.gguf": tiny()})
    folder = paths.config_dir()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "models.toml").write_text(
        '[[model]]\nname = "mid-8b"\ndescription = "x"\nlicence = "MIT"\nrepo = "owner/mid-8b-GGUF"\n'
        'file = "mid-8b-{quant}.gguf"\nquant = "Q4_K_M"\nquality = 4\n'
    )
    ladder = [option("mid-8b", of=MID), option("mid-8b", "Q3_K_M", tiny().stat().st_size, of=MID)]
    return Fake(entries=[MID], best=[option("mid-8b", of=MID)], surveys={"mid-8b": ladder})


def with_rows(fake):
    return {"inventory": lambda _: [one for one in rows() if one.model.name != "guide"]}


async def test_a_pull_goes_on_beside_and_ends_here(hub, hf_cache):
    fake = catalogue_of_the_hub(hub)
    hub.fail("store", SLOW)
    app = stage(fake, **with_rows(fake))
    async with app.run_test(size=(100, 40)) as pilot:
        await at(pilot, "mid-8b")
        await pilot.press("enter")
        await until(pilot, lambda: "Downloading" in text_of(pilot))
        assert "For download" not in text_of(pilot)
        await until(pilot, lambda: "of 2 MiB" in line(pilot, "mid-8b") and "━" in line(pilot, "mid-8b"), 20)
        await until(pilot, lambda: "On this machine" in text_of(pilot), 20)
        assert "Downloading" not in text_of(pilot)
        assert app.screen._browser.item.group is ModelGroup.HERE
        await pilot.press("enter")
        await until(pilot, lambda: app.results == ["mid-8b"])


async def test_a_pull_is_stopped_left_and_gone_on_with(hub, hf_cache):
    fake = catalogue_of_the_hub(hub, 4_000_000)
    hub.fail("store", SLOW)
    app = stage(fake, **with_rows(fake))
    async with app.run_test(size=(100, 40)) as pilot:
        await at(pilot, "mid-8b")
        await pilot.press("p")
        await until(pilot, lambda: partial(hf_cache) > 200_000, 20)
        await pilot.press("x")
        await until(pilot, lambda: "stopped at" in line(pilot, "mid-8b"))
        kept = partial(hf_cache)
        await pilot.press("escape")
        await until(pilot, lambda: app.results == [None])
        hub.mend()
        app.push_screen(app._made(), app.results.append)
        await at(pilot, "mid-8b")
        assert "Resume" in text_of(pilot).splitlines()[-1]
        await pilot.press("enter")
        await until(pilot, lambda: "On this machine" in text_of(pilot), 20)
        assert kept in {one.range[0] for one in hub.requests("store") if one.range}


async def test_the_screen_may_be_left_while_a_pull_goes_on(hub, hf_cache):
    fake = catalogue_of_the_hub(hub)
    hub.fail("store", SLOW)
    app = stage(fake, **with_rows(fake))
    done = []
    app.pulls.on_done = lambda pull: done.append(pull.model)
    async with app.run_test(size=(100, 40)) as pilot:
        await at(pilot, "mid-8b")
        await pilot.press("enter")
        await until(pilot, lambda: app.pulls.current is not None)
        await pilot.press("escape")
        await until(pilot, lambda: app.results == [None])
        await until(pilot, lambda: done == ["mid-8b"], 20)


@pytest.mark.usefixtures("no_waits")
async def test_a_pull_that_fails_says_why_and_can_be_tried_again(hub, hf_cache):
    fake = catalogue_of_the_hub(hub)
    hub.fail("api", Fault(status=500))
    app = stage(fake, **with_rows(fake))
    async with app.run_test(size=(100, 40)) as pilot:
        await at(pilot, "mid-8b")
        await pilot.press("enter")
        await until(pilot, lambda: "failed: " in line(pilot, "mid-8b"))
        text = text_of(pilot)
        assert text.index("Not downloaded") < text.index("! mid-8b")
        assert "Downloading" not in text
        assert "Retry" in text.splitlines()[-1]
        assert app.pulls.all[0].error is not None
        assert (app.pulls.all[0].error.hint or "")[:20] in text_of(pilot)
        await pilot.press("x")
        await until(pilot, lambda: "For download" in text_of(pilot))
        hub.mend()
        await at(pilot, "mid-8b")
        await pilot.press("enter")
        await until(pilot, lambda: "On this machine" in text_of(pilot), 20)


async def test_another_quantization(hub, hf_cache):
    fake = catalogue_of_the_hub(hub)
    app = stage(fake, **with_rows(fake))
    async with app.run_test(size=(160, 40)) as pilot:
        await at(pilot, "mid-8b")
        await until(pilot, lambda: "Q3_K_M" in text_of(pilot))
        await pilot.press("tab", "down", "enter")
        await until(pilot, lambda: bool(app.pulls.all))
        assert (app.pulls.all[0].name, app.pulls.all[0].quant) == ("mid-8b", "Q3_K_M")
        await until(pilot, lambda: app.pulls.all[0].state is PullState.DONE, 20)
        await until(pilot, lambda: "On this machine" in text_of(pilot))
        assert inventory().find("mid-8b")[0].quant == "Q3_K_M"


async def test_what_is_too_large_is_asked_about(tmp_path):
    started = []
    app = stage(world(tmp_path))
    app.pulls.start = lambda *words, **more: started.append((*words, more)) or Pulls.start(app.pulls, "x")
    async with app.run_test(size=(60, 30)) as pilot:
        await at(pilot, "huge-70b")
        await pilot.press("enter")
        await until(pilot, lambda: "Download it anyway?" in text_of(pilot))
        await pilot.press("enter")
        await pilot.pause()
        assert (started, isinstance(app.screen, ModelsScreen)) == ([], True)
        await pilot.press("enter")
        await until(pilot, lambda: "Download it anyway?" in text_of(pilot))
        await pilot.press("y")
        await until(pilot, lambda: started == [("huge-70b", None, {"anyway": True})])


async def test_what_turns_out_not_to_fit_is_asked_about(tmp_path):
    """The planner may find that out only once the hub was asked."""
    calls = []

    def decide(*_):
        source = RepoSource(parse_request("owner/mid-8b-GGUF"), None, ())
        choice = ModelChoice("mid", "Q4_K_M", ())
        picked = DownloadChoice(source, choice, "a machine", why_not="It needs more than there is.")
        return PullDecision((PullPart(source, choice),), ((),), picked)

    def bring(*_):
        calls.append(True)
        raise HubUnreachable("That far it came.")

    app = stage(world(tmp_path), decide=decide, download=bring)
    async with app.run_test(size=(100, 30)) as pilot:
        await at(pilot, "mid-8b")
        await pilot.press("enter")
        await until(pilot, lambda: "failed: It needs more" in line(pilot, "mid-8b"))
        assert calls == []
        await pilot.press("enter")
        await until(pilot, lambda: "Download it anyway?" in text_of(pilot))
        await pilot.press("y")
        await until(pilot, lambda: "failed: That far it came." in line(pilot, "mid-8b"))
        assert calls == [True]


async def test_offline(tmp_path):
    fake = world(tmp_path)
    fake.offline = "EDGECHAT_OFFLINE"
    app = stage(fake)
    async with app.run_test(size=(160, 40)) as pilot:
        await at(pilot, "mid-8b")
        assert "It cannot be downloaded now: EDGECHAT_OFFLINE" in text_of(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: "mid-8b cannot be downloaded" in told(pilot))
        assert app.pulls.all == []


async def test_a_repository_that_is_named(hub, hf_cache):
    hub.add(REPO, {"tiny-F32.gguf": tiny()})
    fake = Fake(entries=[MID], best=[option("mid-8b", of=MID)])
    app = stage(fake, **with_rows(fake))
    async with app.run_test(size=(100, 40)) as pilot:
        await at(pilot, "mid-8b")
        await pilot.press("slash", *REPO.replace("/", "\n").replace("\n", "/"))
        await until(pilot, lambda: "On the hub" in text_of(pilot))
        await pilot.press("down", "enter")
        await until(pilot, lambda: bool(app.pulls.all) and app.pulls.all[0].state is PullState.DONE, 20)
        assert app.pulls.all[0].name == REPO


# Deleting


@pytest.fixture
def user(tmp_path, monkeypatch):
    homes.settle(tmp_path / "user", monkeypatch)
    return tmp_path / "user"


async def test_deleting_asks_and_tells_what_is_freed(user):
    path = homes.place(tiny(), paths.data_dir() / "models" / "mine.gguf")
    app = stage(Fake(), inventory=ModelLibrary.real().inventory)
    async with app.run_test(size=(60, 30)) as pilot:
        await at(pilot, "mine")
        await pilot.press("d")
        await until(pilot, lambda: "Delete mine? This frees" in text_of(pilot))
        await pilot.press("n")
        await pilot.pause()
        assert path.exists()
        await pilot.press("delete")
        await until(pilot, lambda: "Delete mine? This frees" in text_of(pilot))
        await pilot.press("right", "enter")
        await until(pilot, lambda: "Deleted mine." in told(pilot))
        assert not path.exists()
        await until(pilot, lambda: "mine  " not in text_of(pilot))


async def test_what_another_tool_keeps_is_not_deleted(user):
    blob = homes.in_ollama(user, tiny(), "llama3.2:3b")
    app = stage(Fake(), inventory=ModelLibrary.real().inventory)
    async with app.run_test(size=(100, 30)) as pilot:
        await at(pilot, "ollama/llama3.2:3b")
        await pilot.press("d")
        await until(pilot, lambda: "ollama rm llama3.2:3b" in told(pilot))
        assert blob.exists()


# The whole of it


@pytest.mark.parametrize("timed", [False, pytest.param(True, marks=pytest.mark.soak)])
async def test_the_real_library(user, timed):
    """The catalogue that is shipped, held against the machine that runs the tests; keys go on meanwhile."""
    homes.place(tiny(), paths.data_dir() / "models" / "mine.gguf")
    app = Stage(ModelLibrary.real(), lambda library, pulls: ModelsScreen(library, pulls))
    async with app.run_test(size=(100, 40)) as pilot:
        gaps = []

        async def beat():
            while True:
                start = time.perf_counter()
                await asyncio.sleep(0.005)
                gaps.append(time.perf_counter() - start)

        beating = asyncio.create_task(beat())
        await until(pilot, lambda: "free" in text_of(pilot).splitlines()[0], 60)
        beating.cancel()
        assert "mine" in text_of(pilot)
        assert "qwen" in text_of(pilot)
        assert not timed or sorted(gaps)[int(len(gaps) * 0.95)] < 0.1
