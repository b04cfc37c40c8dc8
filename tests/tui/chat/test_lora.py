"""LoRA adapters in the app: chosen by /lora, shown, and sent with the question."""

from functools import partial

import msgspec

from edgechat.models.adapters.use import AdapterUse
from edgechat.planner.placement.adapters import AdapterPlan
from tests.fakes import FakeEngine
from tests.kit import Spec, build
from tests.kit.adapters import adapter
from tests.tui.driving import app_with, ask, plan, say, text_of, until

SPEC = Spec()


def planned(path, _model):
    usual = AdapterPlan(name="usual", path=path, scale=1.0, rank=4, total_bytes=32_768)
    return msgspec.structs.replace(plan(str(build(SPEC))), model_name="kit", adapters=(usual,))


async def test_adapters_are_chosen_shown_and_sent(tmp_path):
    usual, french = (str(adapter(tmp_path, SPEC, name, seed=len(name))) for name in ("usual", "french"))
    engine = FakeEngine()
    app = app_with(engine, tmp_path / "chats.db", prepare=partial(planned, usual))
    async with app.run_test(size=(100, 34)) as pilot:
        await until(pilot, lambda: "adapters usual" in text_of(pilot))
        await say(pilot, "One")
        assert "kit + usual" in text_of(pilot)
        await ask(pilot, f"/lora {french}:0.5")
        await until(pilot, lambda: "kit + french:0.5" in text_of(pilot))
        await say(pilot, "Two")
        await ask(pilot, f"/lora {tmp_path}/gone.gguf")
        prompt = pilot.app.screen.prompt
        await until(pilot, lambda: "gone" in prompt.text)  # to be corrected
        prompt.clear()
        await ask(pilot, "/lora off")
        await until(pilot, lambda: "kit +" not in text_of(pilot))
        await say(pilot, "Three")
        await ask(pilot, "/lora auto")
        await say(pilot, "Four")
    sent = [request.adapters for request in engine.requests if request.priority == "interactive"]
    one = (AdapterUse(usual),)
    assert sent == [one, (AdapterUse(french, 0.5),), (), one]
