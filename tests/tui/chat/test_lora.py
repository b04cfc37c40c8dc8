"""LoRA adapters in the app: chosen by /lora, shown, and sent with the question."""

from functools import partial

import msgspec
import pytest

from edgechat.native.params import AdapterUse
from edgechat.planner.companions import AdapterPlan
from tests.kit import Spec, build
from tests.kit.adapters import adapter
from tests.tui.driving import plan

SPEC = Spec()


def planned(path, _model):
    usual = AdapterPlan(name="usual", path=path, scale=1.0, rank=4, total_bytes=32_768)
    return msgspec.structs.replace(plan(str(build(SPEC))), model_name="kit", adapters=(usual,))


@pytest.mark.slow
async def test_adapters_are_chosen_shown_and_sent(scene, tmp_path):
    usual, french = (str(adapter(tmp_path, SPEC, name, seed=len(name))) for name in ("usual", "french"))
    async with scene(size=(100, 34), prepare=partial(planned, usual)) as pilot:
        await pilot.see("adapters usual")
        await pilot.say("One", shown="kit + usual")
        await pilot.ask(f"/lora {french}:0.5", see="kit + french:0.5")
        await pilot.say("Two")
        await pilot.ask(
            f"/lora {tmp_path}/gone.gguf", until=lambda: "gone" in pilot.prompt.text
        )  # to be corrected
        pilot.prompt.clear()
        await pilot.ask("/lora off", gone="kit +")
        await pilot.say("Three")
        await pilot.ask("/lora auto")
        await pilot.say("Four")
    sent = [request.adapters for request in pilot.engine.requests if request.priority == "interactive"]
    one = (AdapterUse(usual),)
    assert sent == [one, (AdapterUse(french, 0.5),), (), one]
