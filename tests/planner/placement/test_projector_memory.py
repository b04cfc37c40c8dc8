"""What a projector takes: tokens for a picture, and memory, held against libmtmd's own figures."""

import pytest

from edgechat.planner import companions
from edgechat.planner.companions import Picture, compute_bytes, largest_picture
from tests.planner.headers import projector_file

SIGLIP = projector_file("gemma3")
QWEN3 = projector_file("qwen3vl_merger", image_size=768, patch=16, spatial_merge_size=2)
GEMMA4 = projector_file("gemma4v", image_size=224, patch=16, gated=True)
SMOLVLM = projector_file(
    "idefics3",
    embd=768,
    ff=3072,
    layers=12,
    image_size=512,
    patch=16,
    projector__scale_factor=4,
    preproc_image_size=2048,
)


@pytest.mark.parametrize(
    ("file", "patches", "a_patch"),
    [(SIGLIP, 64 * 64, 31_040), (QWEN3, 92 * 92, 30_736), (GEMMA4, 48 * 48, 68_552), (SMOLVLM, 1024, 21_504)],
)
def test_the_compute_buffer_is_what_libmtmds_allocator_says(file, patches, a_patch):
    """As mtmd_get_memory_usage of llama.cpp 0c1e57098 gave it for headers of these shapes, on a CPU."""
    picture = Picture(1, patches, 0, 0)
    found = compute_bytes(file.header, picture, on_cpu=False) - companions._TABLES
    assert found == pytest.approx(patches * a_patch, rel=0.012)


@pytest.mark.parametrize(
    ("file", "width", "context", "tokens", "patches", "whole"),
    [
        (SIGLIP, 2560, 16384, 256, 4096, 256),
        (SIGLIP, 2560, 256, 256, 4096, 256),  # of one size only
        (GEMMA4, 5376, 16384, 1120, 10_080, 1120),
        (GEMMA4, 5376, 2048, 1024, 9216, 1024),
        (GEMMA4, 2560, 16384, 1120, 10_080, 0),  # E4B
        (QWEN3, 4096, 16384, 4096, 16_384, 0),
        (QWEN3, 4096, 4096, 2048, 8192, 0),
        (SMOLVLM, 960, 8192, 1088, 1024, 0),
        (projector_file("gemma4uv", patch=16, image_size=224), 3840, 8192, 1120, 1120, 1120),
        (projector_file("internvl", image_size=448, preproc_max_tiles=6), 4096, 8192, 1792, 1024, 0),
        (projector_file("paddleocr", patch=14, image_max_pixels=28 * 28 * 100), 1024, 8192, 100, 400, 0),
        (projector_file("youtuvl", patch=16), 4096, 131_072, 4096, 16_384, 0),
        (projector_file("", "ultravox"), 4096, 8192, 0, 0, 0),
    ],
)
def test_the_largest_picture(file, width, context, tokens, patches, whole):
    picture = largest_picture(file.header, width, context)
    assert (picture.tokens, picture.patches, picture.whole) == (tokens, patches, whole)


def test_every_part_is_in_the_plan():
    picture = largest_picture(QWEN3.header, 4096, 16384)
    on_card, in_ram = (QWEN3.plan(picture, 4096, device) for device in ("CUDA0", ""))
    assert on_card.weights_bytes == in_ram.weights_bytes == QWEN3.header.header.weights_bytes
    assert in_ram.compute_bytes > on_card.compute_bytes
    assert picture.pixels == 4096 * 32 * 32
    assert on_card.host_bytes == 15 * picture.pixels + 4 * 4096 * 4096
    assert set(on_card.needs) == {"RAM", "CUDA0"}
    assert sum(needs.total_bytes for needs in on_card.needs.values()) == on_card.total_bytes
    assert sum(needs.total_bytes for needs in in_ram.needs.values()) == in_ram.total_bytes
    assert set(in_ram.needs) == {"RAM"}


def test_sound_takes_memory_too():
    both, eyes = projector_file("gemma4v", "gemma4a"), projector_file("gemma4v")
    picture = largest_picture(both.header, 2560, 8192)
    more = compute_bytes(both.header, picture, on_cpu=True) - compute_bytes(eyes.header, picture, on_cpu=True)
    assert more > 1500 * 4 * 4304
