"""Plans with a projector: in the same budget as the model, on a card or in RAM, or not at all."""

from dataclasses import replace

import msgspec
import pytest

from edgechat.base.errors import DoesNotFit
from edgechat.device.memory import Memory
from edgechat.planner.fallback import step_down
from edgechat.planner.machine import without_loads
from edgechat.planner.plan import as_json
from edgechat.planner.request import DEFAULT_REQUEST, PlanRequest
from tests.kit.published import published
from tests.planner.headers import GIB, machine, projector_file
from tests.planner.placement.test_layout import card, with_cards
from tests.planner.planning import plan

LLAMA, GEMMA = published("llama-3.1-8b"), published("gemma-3-12b")
EYES = projector_file("gemma3")
QWEN3 = projector_file("qwen3vl_merger", image_size=768, patch=16)


def made(on, eyes=EYES, request=DEFAULT_REQUEST, header=LLAMA):
    return plan("a", header, on, request, projector=eyes)


def reason(found, word):
    (sentence,) = (sentence for sentence in found.reasons if word in sentence)
    return sentence


def test_without_one_nothing_is_taken():
    blind = made(machine(16 * GIB), None)
    assert (blind.projector, blind.no_vision) == (None, "")
    assert as_json(blind)["projector"] is None
    assert all(memory.projector_bytes == 0 for memory in blind.memory)
    seeing = made(machine(16 * GIB))
    assert seeing.projector is not None
    assert seeing.total_bytes == blind.total_bytes + seeing.projector.total_bytes
    assert (seeing.n_ubatch, seeing.n_batch) == (blind.n_ubatch, blind.n_batch)


def test_it_is_shown():
    found = made(machine(16 * GIB))
    assert (
        reason(found, "sees") == "The model sees with mmproj.gguf, in RAM. A picture takes up to 256 tokens."
    )
    assert "the projector about 970 MiB" in reason(found, "Needs")
    shown = as_json(found)["projector"]
    assert (shown["path"], shown["device"], shown["image_tokens"]) == ("/models/mmproj.gguf", None, 256)
    assert (
        shown["total_bytes"]
        == found.memory[0].projector_bytes
        == as_json(found)["devices"][0]["projector_bytes"]
    )


def test_it_shares_the_budget():
    free = int(6.6 * GIB)
    blind, seeing = made(machine(free), None), made(machine(free))
    assert seeing.projector is not None
    assert seeing.context < blind.context
    assert seeing.total_bytes <= free


def test_where_only_the_model_fits_it_is_left_out():
    on = machine(int(5.5 * GIB))
    found = made(on)
    assert (found.projector, found.context) == (None, made(on, None).context)
    assert "there is not enough memory left" in found.no_vision
    assert found.no_vision in found.reasons
    with pytest.raises(DoesNotFit):
        made(machine(4 * GIB))


def test_on_a_card_with_room_for_all():
    found = made(with_cards(32, card("CUDA0", 24)))
    assert found.projector is not None
    assert found.projector.device == "CUDA0"
    ram, on_card = found.memory
    assert (ram.projector_bytes, on_card.projector_bytes) == (
        found.projector.host_bytes,
        found.projector.weights_bytes + found.projector.compute_bytes,
    )
    assert "on CUDA0, all layers fit beside it" in reason(found, "sees")


def test_the_second_card_has_room():
    """Where it fits beside all layers on any card, none of them is pushed off."""
    found = made(with_cards(32, card("CUDA1", 6), card("CUDA0", 6)))
    assert found.projector is not None
    assert found.projector.device in ("CUDA0", "CUDA1")
    assert found.gpu_layers == found.n_layers + 1


@pytest.mark.parametrize("gibibytes", [3, 4, 5, 6])
def test_on_a_card_that_is_too_small_the_faster_place_is_taken(gibibytes):
    on = with_cards(32, card("CUDA0", gibibytes))
    request = PlanRequest(context=8192)
    blind, seeing = made(on, None, request), made(on, QWEN3, request)
    assert seeing.projector is not None
    if seeing.projector.device:
        assert "where questions about pictures are answered sooner" in reason(seeing, "sees")
        assert seeing.gpu_layers < blind.gpu_layers
    else:
        assert "it would push" in reason(seeing, "sees")
        assert seeing.gpu_layers == blind.gpu_layers
    assert seeing.predicted is not None


def test_layers_give_way_to_pictures_that_take_a_processor_long():
    on, request = with_cards(32, card("CUDA0", 5)), PlanRequest(context=16384)
    large = made(on, QWEN3, request)
    small = made(on, projector_file("gemma3", image_size=224, weights=GIB), request)
    assert large.projector is not None
    assert small.projector is not None
    assert (large.projector.device, small.projector.device) == ("CUDA0", "")
    assert "more layers then run on the CPU" in reason(large, "sees")
    assert "layers off CUDA0, and answers would take longer" in reason(small, "sees")


def test_layers_give_way_to_sounds_as_well():
    """Whisper's large encoder takes a processor as long for half a minute as it takes for large pictures."""
    on, request = with_cards(32, card("CUDA0", 5)), PlanRequest(context=16384)
    found = made(on, projector_file("", "ultravox", embd=1280, ff=5120, layers=32), request)
    assert found.projector is not None
    assert found.projector.device == "CUDA0"


def test_a_picture_that_is_computed_whole_has_room_in_a_call():
    gemma4 = projector_file("gemma4v", patch=16, image_size=224, gated=True)
    blind, seeing = (made(machine(32 * GIB), eyes, header=GEMMA) for eyes in (None, gemma4))
    assert (blind.n_ubatch, blind.n_batch) == (512, 512)
    assert (seeing.n_ubatch, seeing.n_batch) == (1120, 1120)
    assert seeing.compute_bytes > blind.compute_bytes
    # Not in a context for smaller pictures.
    short = made(machine(32 * GIB), gemma4, PlanRequest(context=1024), GEMMA)
    assert short.projector is not None
    assert (short.n_ubatch, short.projector.image_tokens) == (512, 512)


def test_the_steps_down_keep_room_for_a_picture_until_it_goes():
    now, told = made(machine(32 * GIB), header=LLAMA), []
    while (step := step_down(now, LLAMA)) is not None:
        now, said = step
        told.append(said)
        assert now.projector is None or now.n_ubatch >= now.projector.image_batch
    assert told[:3] == [
        "Prompts are read 256 tokens at a time, to save memory.",
        "The KV cache is kept in 8 bits (q8_0), to save memory.",
        "Its projector mmproj.gguf is not loaded, to save memory: the model reads only text.",
    ]
    assert told[3] == "Prompts are read 128 tokens at a time, to save memory."
    assert now.no_vision == told[2]


def test_what_no_picture_has_taken_does_not_come_back():
    free = with_cards(32, card("CUDA0", 24))
    found = made(free)
    assert found.projector is not None
    used = replace(free.accelerators[0], free=8 * GIB, own=8 * GIB)
    busy = replace(free, memory=Memory(64 * GIB, 20 * GIB), accelerators=(used,))
    after = without_loads(busy, [found])
    bare = without_loads(busy, [msgspec.structs.replace(found, projector=None)])
    assert bare.accelerators[0].free - after.accelerators[0].free == found.projector.compute_bytes
    assert bare.memory.available - after.memory.available == found.projector.host_bytes
