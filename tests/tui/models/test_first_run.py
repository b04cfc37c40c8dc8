"""The first run: what is said of the machine, and what one begins with."""

import pytest

from edgechat.base.errors import HubUnreachable, SettingsError
from edgechat.models.hub.http.probing import HubReach
from edgechat.models.local.locations import Place
from edgechat.planner.ranking.scoring import Verdict
from edgechat.tui.models.first_run import FirstRun, FirstRunChoice
from edgechat.tui.models.library import ModelLibrary
from edgechat.tui.models.pull import PullState
from edgechat.tui.models.screen import ModelsScreen
from tests.cli.pulling import sized
from tests.hub import Fault
from tests.tui.driving import text_of, until
from tests.tui.libraries import GIB, Fake, Stage, entry, option, row

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured")]

BIG, MID, TINY = entry("big-30b", 6), entry("mid-8b", 4), entry("tiny-1b", 2)


def stage(fake, **others):
    return Stage(
        fake.library(**others),
        lambda library, pulls: FirstRun(library, pulls, lambda: ModelsScreen(library, pulls)),
    )


def no_hub(*_):
    raise HubUnreachable("There is no hub.")


def chosen(pilot):
    """Return the id of the card or line at the cursor."""
    focused = pilot.app.screen.focused
    return focused.id if focused is not None else None


def world(tmp_path):
    path = tmp_path / "mine.gguf"
    return Fake(
        rows=[
            row("mine", path),
            row("broken", tmp_path / "b.gguf", damage="It is a web page."),
            row("ollama/llama3.2:3b", tmp_path / "blob", place=Place.OLLAMA),
            row("guide", tmp_path / "guide.gguf", place=Place.SHIPPED),
        ],
        entries=[BIG, MID, TINY],
        best=[
            option("big-30b", size=20 * GIB, of=BIG, tps=8, worth=2.0, first_token=40),
            option("mid-8b", size=2 * GIB, of=MID, tps=12.3),
            option("tiny-1b", size=GIB // 2, of=TINY, tps=40, worth=0.5, first_token=2),
        ],
        local={path: option("mine", tps=33.0, path=path)},
    )


@pytest.mark.parametrize(("width", "height"), [(60, 16), (60, 24), (100, 24), (100, 40), (160, 50)])
async def test_what_is_said(tmp_path, width, height):
    app = stage(world(tmp_path))
    async with app.run_test(size=(width, height)) as pilot:
        await until(pilot, lambda: "mid-8b" in text_of(pilot))
        seen = begin = text_of(pilot)
        for _ in range(9):  # on low screens, the rest is below
            await pilot.press("down")
            seen += "\n" + text_of(pilot)
        for words in (
            "Balanced",
            "★ recommended",
            "2.0 GiB in ~3 min",
            "~12 tokens/s",
            "First token: of a prompt of 1,000 tokens.",
            "Downloads: at 100 Mbit/s, which is assumed.",
            "Fast",
            "Best",
        ):
            assert words in " ".join((seen if height < 30 else begin).split()), words
        for words in (
            "A processor, 2 cores",
            "1  mine   2.0 GiB, own folder, fits, ~33 tokens/s",
            "2  ollama/llama3.2:3b   2.0 GiB, Ollama, fits",
            "b  Fast now, mid-8b after it",
            "g  Ask the guide   a tiny model about edgechat",
            "m  See all models",
        ):
            assert words in seen, words
        assert "broken" not in seen
        assert "nats" not in seen
        assert all(len(one) <= width for one in seen.splitlines())


async def test_arrows_go_from_card_to_card(tmp_path):
    app = stage(world(tmp_path))
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: chosen(pilot) == "card-1")  # what is recommended
        for key, there in (
            *(("left", "card-0"), ("left", "card-0"), ("right", "card-1"), ("right", "card-2")),
            *(("down", "local-1"), ("up", "card-2"), ("up", "card-2"), ("down", "local-1")),
            *(("down", "local-2"), ("down", "both"), ("down", "guide"), ("down", "models")),
            *(("down", "models"), ("left", "models"), ("k", "guide"), ("j", "models")),
        ):
            await pilot.press(key)
            assert chosen(pilot) == there, key


async def test_arrows_go_from_line_to_line_in_a_narrow_terminal(tmp_path):
    app = stage(world(tmp_path))
    async with app.run_test(size=(60, 24)) as pilot:
        await until(pilot, lambda: chosen(pilot) == "card-1")
        for key, there in (("up", "card-0"), ("down", "card-1"), ("down", "card-2"), ("down", "local-1")):
            await pilot.press(key)
            assert chosen(pilot) == there, key


async def test_a_click_goes_there_and_the_next_one_chooses(tmp_path):
    app = stage(world(tmp_path))
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: chosen(pilot) == "card-1")
        await pilot.click("#local-2")
        assert (chosen(pilot), app.results) == ("local-2", [])
        await pilot.click("#local-2")
        await until(pilot, lambda: app.results == [FirstRunChoice("ollama/llama3.2:3b")])


async def test_one_model_may_be_all_of_it(tmp_path):
    fake = world(tmp_path)
    fake.best = fake.best[2:]
    app = stage(fake)
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "Fast, balanced and best" in text_of(pilot))
        assert "after it" not in text_of(pilot)


async def test_nothing_slow_is_recommended(tmp_path):
    fake = world(tmp_path)
    fake.best = [option("mid-8b", of=MID, first_token=31)]
    app = stage(fake)
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "None is recommended" in text_of(pilot))
        assert "★" not in text_of(pilot)
        await pilot.press("m")
        await until(pilot, lambda: "For download" in text_of(pilot))
        assert "★" not in text_of(pilot)


async def test_the_rate_that_was_measured(tmp_path):
    fake = world(tmp_path)
    fake.reach = HubReach(rate=125e6)
    app = stage(fake)
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "at 1 Gbit/s, as measured" in text_of(pilot))
        assert "2.0 GiB in ~15 s" in text_of(pilot)


async def test_the_guide_is_there_before_anything_is_known(tmp_path):
    fake = world(tmp_path)
    fake.gate.clear()
    app = stage(fake)
    async with app.run_test(size=(60, 24)) as pilot:
        await until(pilot, lambda: "Finding the best models for this machine…" in text_of(pilot))
        await pilot.press("enter")  # nothing is known yet, so nothing is taken
        await pilot.pause()
        assert app.results == []
        await pilot.press("g")
        await until(pilot, lambda: app.results == [FirstRunChoice("guide")])
        fake.gate.set()


async def test_the_cursor_stays_where_the_user_put_it(tmp_path):
    fake = world(tmp_path)
    fake.gate.clear()
    app = stage(fake)
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "Finding the best models" in text_of(pilot) and "mine" in text_of(pilot))
        await pilot.press("down")
        assert chosen(pilot) == "local-1"
        fake.gate.set()
        await until(pilot, lambda: "★" in text_of(pilot))
        assert chosen(pilot) == "local-1"


def on_the_hub(hub, home, *names):
    """Let a hub have models, and the catalogue name them."""
    hub.fail("store", Fault(pause=0.04, piece=1 << 14))
    (home / "config").mkdir(parents=True)
    lines = []
    for name in names:
        hub.add(f"owner/{name}-GGUF", {f"{name}-Q4_K_M.gguf": sized(2_000_000)})
        lines.append(
            f'[[model]]\nname = "{name}"\ndescription = "x"\nlicence = "MIT"\nrepo = "owner/{name}-GGUF"\n'
            f'file = "{name}-{{quant}}.gguf"\nquant = "Q4_K_M"\n'
        )
    (home / "config/models.toml").write_text("".join(lines))


async def test_enter_pulls_what_is_highlighted_and_the_prompt_is_open_at_once(hub, hf_cache, home, tmp_path):
    on_the_hub(hub, home, "mid-8b")
    app = stage(world(tmp_path))
    async with app.run_test(size=(60, 24)) as pilot:
        await until(pilot, lambda: chosen(pilot) == "card-1")
        await pilot.press("enter")
        await until(pilot, lambda: bool(app.results), 5)
        (choice,) = app.results
        assert (choice.model, choice.follower) == ("guide", None)
        assert not choice.pull.is_over
        hub.mend()
        await until(pilot, lambda: choice.pull.is_over, 20)
        assert (choice.pull.state, choice.pull.model) == (PullState.DONE, "mid-8b")


async def test_a_better_model_may_follow(hub, hf_cache, home, tmp_path):
    on_the_hub(hub, home, "tiny-1b", "mid-8b")
    app = stage(world(tmp_path))
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "Fast now, mid-8b after it" in text_of(pilot))
        await pilot.press("b")
        await until(pilot, lambda: bool(app.results), 5)
        (choice,) = app.results
        assert (choice.pull.name, choice.follower.name) == ("tiny-1b", "mid-8b")
        hub.mend()
        await until(pilot, lambda: choice.follower.is_over, 30)
        assert (choice.pull.model, choice.follower.model) == ("tiny-1b", "mid-8b")


async def test_a_better_model_may_follow_one_that_is_here(tmp_path):
    fake = world(tmp_path)
    path = tmp_path / "tiny.gguf"
    fake.rows = [row("tiny-1b", path, of=TINY)]
    fake.best = [*fake.best[:2], option("tiny-1b", of=TINY, path=path, worth=0.5)]
    app = stage(fake, decide=no_hub)
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "Fast now, mid-8b after it" in text_of(pilot))
        await pilot.press("b")
        await until(pilot, lambda: bool(app.results))
        (choice,) = app.results
        assert (choice.model, choice.pull, choice.follower.name) == ("tiny-1b", None, "mid-8b")


async def test_what_is_here_is_one_digit_away(tmp_path):
    app = stage(world(tmp_path))
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "On this machine" in text_of(pilot))
        await pilot.press("9")
        await pilot.press("2")
        await until(pilot, lambda: app.results == [FirstRunChoice("ollama/llama3.2:3b")])


async def test_escape_is_the_guide(tmp_path):
    app = stage(world(tmp_path))
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.press("escape")
        await until(pilot, lambda: app.results == [FirstRunChoice("guide")])


async def test_all_models(tmp_path):
    app = stage(world(tmp_path))
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "On this machine" in text_of(pilot))
        await pilot.press("m")
        await until(pilot, lambda: isinstance(app.screen, ModelsScreen))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, FirstRun))
        await pilot.press("m")
        await until(pilot, lambda: "For download" in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: app.results == [FirstRunChoice("mine")])


@pytest.mark.parametrize("width", [60, 100])
async def test_without_a_network(tmp_path, width):
    fake = world(tmp_path)
    fake.offline = "EDGECHAT_OFFLINE"
    app = stage(fake)
    async with app.run_test(size=(width, 40)) as pilot:
        await until(pilot, lambda: "EDGECHAT_OFFLINE keeps edgechat offline" in text_of(pilot))
        assert chosen(pilot) == "guide"
        assert "mid-8b" not in text_of(pilot)
        await pilot.press("up", "up", "up")
        assert chosen(pilot) == "local-1"
        await pilot.press("enter")
        await until(pilot, lambda: app.results == [FirstRunChoice("mine")])


async def test_a_hub_that_is_not_there_is_told_at_once(hub, hf_cache, tmp_path):
    hub.stop()
    fake = world(tmp_path)
    app = stage(fake, probe=ModelLibrary.real().probe)
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "Offline: 127.0.0.1 is not reachable" in text_of(pilot))
        assert chosen(pilot) == "guide"
        assert "after it" not in text_of(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: app.results == [FirstRunChoice("guide")])


async def test_the_network_may_come_back(tmp_path):
    fake = world(tmp_path)
    fake.reach = HubReach(problem="The hub is not reachable: no route.")
    app = stage(fake)
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "no route" in text_of(pilot))
        fake.reach = HubReach()
        await pilot.press("r")
        await until(pilot, lambda: "no route" not in text_of(pilot))
        await pilot.press("up", "up", "up", "up")
        assert chosen(pilot) == "card-0"


async def test_a_download_that_fails_later_is_no_dead_end(hub, hf_cache, tmp_path):
    app = stage(world(tmp_path))  # the hub has no models
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: chosen(pilot) == "card-1")
        await pilot.press("enter")
        await until(pilot, lambda: bool(app.results))
        (choice,) = app.results
        await until(pilot, lambda: choice.pull.state is PullState.FAILED, 20)


async def test_what_is_recommended_may_be_here(tmp_path):
    fake = world(tmp_path)
    path = tmp_path / "mid.gguf"
    fake.rows = [row("mid-8b", path, of=MID)]
    fake.best = [option("mid-8b", of=MID, path=path)]
    app = stage(fake)
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "4.0 GiB, here" in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: app.results == [FirstRunChoice("mid-8b")])


async def test_where_nothing_fits(tmp_path):
    fake = Fake(
        entries=[MID], best=[option("mid-8b", size=40 * GIB, verdict=Verdict.TOO_LARGE, of=MID)], rows=[]
    )
    app = stage(fake)
    async with app.run_test(size=(60, 24)) as pilot:
        await until(pilot, lambda: "No model of the catalogue fits" in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: app.results == [FirstRunChoice("guide")])


async def test_what_is_wrong_is_said(tmp_path):
    fake = world(tmp_path)
    fake.problem = SettingsError("settings.toml is odd.", hint="Mend it.")
    app = stage(fake)
    async with app.run_test(size=(60, 24)) as pilot:
        await until(pilot, lambda: "settings.toml is odd. Mend it." in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: app.results == [FirstRunChoice("mine")])
