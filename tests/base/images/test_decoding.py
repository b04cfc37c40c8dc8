"""Images are decoded as a viewer shows them; whatever a file contains, there is an answer or an error."""

import importlib.util
import os
import struct
import sys
import time
import zlib
from pathlib import Path
from typing import TypeVar

import pytest
from PIL import Image

from edgechat.base.errors import ImageError
from edgechat.base.images import image as images
from edgechat.base.images.image import MAX_PIXELS, Decoder, ImageFacts, Pixels
from edgechat.base.process import file_decoder
from tests.base.images.files import (
    BLUE,
    EXIF_TURNS,
    GREEN,
    RED,
    WHITE,
    bomb,
    encoded,
    mutated,
    png,
    quadrants,
    sound,
)

T = TypeVar("T")


@pytest.fixture(scope="module")
def decoder():
    with Decoder() as one:
        yield one


def corners(found):
    """Return the colours of the quadrants' middles, the primary ones made exact."""
    assert len(found.rgb) == 3 * found.width * found.height
    colours = []
    for y in (found.height // 4, 3 * found.height // 4):
        for x in (found.width // 4, 3 * found.width // 4):
            at = 3 * (y * found.width + x)
            colours.append(tuple(255 if value > 200 else value // 100 for value in found.rgb[at : at + 3]))
    return colours


def refused(decoder, data):
    with pytest.raises(ImageError) as caught:
        decoder.inspect(data)
    with pytest.raises(ImageError) as again:
        decoder.pixels(data)
    assert str(again.value) == str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("format", "mode", "options"),
    [
        ("PNG", "RGB", {}),
        ("PNG", "P", {}),
        ("PNG", "RGBA", {}),
        ("JPEG", "RGB", {"quality": 95}),
        ("JPEG", "RGB", {"quality": 95, "progressive": True}),
        ("JPEG", "CMYK", {"quality": 95}),
        ("WEBP", "RGB", {"lossless": True}),
        ("WEBP", "RGBA", {"lossless": True}),
        ("GIF", "P", {}),
        ("BMP", "RGB", {}),
    ],
)
def test_formats(decoder, format, mode, options):
    data = encoded(quadrants(mode=mode), format, **options)
    assert decoder.inspect(data) == ImageFacts(format.lower(), 64, 32)
    assert corners(decoder.pixels(data)) == [RED, GREEN, BLUE, WHITE]


@pytest.mark.parametrize("turn", EXIF_TURNS)
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_exif_rotation(decoder, turn, format):
    """A camera that was held `turn` stores what shows the quadrants upright, once it is turned back."""
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    image = quadrants()
    exif = Image.Exif()
    exif[0x0112] = turn
    stored = image.transpose(undo[turn]) if turn in undo else image
    data = encoded(stored, format, exif=exif, quality=95)
    facts, found = decoder.inspect(data), decoder.pixels(data)
    assert (facts.width, facts.height) == (found.width, found.height) == (64, 32)
    assert corners(found) == [RED, GREEN, BLUE, WHITE]


def test_a_rotation_that_is_none_is_ignored(decoder):
    exif = Image.Exif()
    exif[0x0112] = 77
    assert corners(decoder.pixels(encoded(quadrants(), "PNG", exif=exif))) == [RED, GREEN, BLUE, WHITE]
    broken = encoded(quadrants(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff", quality=95)
    assert corners(decoder.pixels(broken)) == [RED, GREEN, BLUE, WHITE]


@pytest.mark.parametrize("format", ["PNG", "WEBP", "GIF"])
def test_transparency_is_white(decoder, format):
    image = quadrants(mode="RGBA")
    image.paste((0, 0, 0, 0), (0, 0, 32, 16))
    assert corners(decoder.pixels(encoded(image, format))) == [WHITE, GREEN, BLUE, WHITE]


def test_half_transparency(decoder):
    data = encoded(Image.new("LA", (2, 2), (0, 128)), "PNG")
    assert set(decoder.pixels(data).rgb) == {127}


def test_16_bits_of_gray_keep_their_shades(decoder):
    image = Image.new("I;16", (3, 1))
    for x, shade in enumerate((0, 32768, 65535)):
        image.putpixel((x, 0), shade)
    assert decoder.pixels(encoded(image, "PNG")).rgb == bytes([0, 0, 0, 128, 128, 128, 255, 255, 255])
    row = zlib.compress(b"\0" + struct.pack(">3H", 65535, 32768, 0))
    assert decoder.pixels(png(1, 1, row, depth=16)).rgb == bytes([255, 128, 0])


def test_of_an_animation_the_first_image(decoder):
    for format in ("GIF", "WEBP", "PNG"):
        others = [Image.new("RGB", (64, 32), "black")] * 3
        data = encoded(quadrants(), format, save_all=True, append_images=others, lossless=True)
        assert corners(decoder.pixels(data)) == [RED, GREEN, BLUE, WHITE]


def test_several_images_of_one_shot(decoder):
    """Phones append a second one, and say so (MPO)."""
    data = encoded(quadrants(), "MPO", save_all=True, append_images=[quadrants().rotate(180)], quality=95)
    assert decoder.inspect(data).format == "jpeg"
    assert corners(decoder.pixels(data)) == [RED, GREEN, BLUE, WHITE]


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
@pytest.mark.parametrize("size", [(64, 32), (61, 33), (100, 7), (333, 250)])
@pytest.mark.parametrize("most", [1, 7, 100, 512, 2047])
def test_scaled_down(decoder, format, size, most):
    data = encoded(quadrants(*size), format, quality=95)
    found = decoder.pixels(data, most_pixels=most)
    assert found.width * found.height <= most
    assert len(found.rgb) == 3 * found.width * found.height
    assert decoder.inspect(data) == ImageFacts(format.lower(), *size)


def test_a_scaled_image_looks_the_same(decoder):
    for format in ("JPEG", "PNG"):
        found = decoder.pixels(encoded(quadrants(1024, 512), format), most_pixels=20_000)
        assert (found.width, found.height) == (128, 64)
        assert corners(found) == [RED, GREEN, BLUE, WHITE]


def test_a_long_screenshot_is_scaled_to_what_models_take(decoder):
    facts = decoder.inspect(encoded(Image.new("L", (100, 40_000)), "PNG"))
    assert (facts.width, facts.height) == (25, 10_000)


@pytest.mark.slow
def test_the_largest_photos(decoder):
    data = encoded(quadrants(16_320, 12_240), "JPEG")
    facts, found = decoder.inspect(data), decoder.pixels(data)
    assert (facts.width, facts.height) == (found.width, found.height) == (8160, 6120)
    assert corners(found) == [RED, GREEN, BLUE, WHITE]


@pytest.mark.slow
def test_decompression_bombs(decoder):
    limit = "has more than 67 megapixels, the limit."
    assert limit in refused(decoder, bomb(9000, 9000))
    assert "has more than 268 megapixels, the limit." in refused(decoder, png(60_000, 60_000, b""))
    gif = bytearray(encoded(quadrants(), "GIF"))
    gif[6:10] = b"\xff\xff\xff\xff"
    assert "megapixels, the limit." in refused(decoder, bytes(gif))


def test_headers_that_lie(decoder):
    row = b"\0" + bytes([255] * 30)
    cut_off = zlib.compress(row)[:-6]
    assert "is damaged or incomplete" in refused(decoder, png(10, 1000, cut_off))
    assert "is damaged or incomplete" in refused(decoder, png(8000, 8000, cut_off))
    # Data that ends in good order before the image does leaves the rest black, as in browsers.
    assert decoder.pixels(png(10, 3, zlib.compress(row))).rgb == bytes([255] * 30 + [0] * 60)
    bmp = bytearray(encoded(quadrants(), "BMP"))
    bmp[18:26] = struct.pack("<ii", 5000, 5000)
    assert "is damaged or incomplete" in refused(decoder, bytes(bmp))


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_truncated_files(decoder, format):
    data = encoded(Image.effect_noise((200, 100), 60).convert("RGB"), format)
    for part in (1, 2, 3):
        assert "damaged" in refused(decoder, data[: len(data) * part // 4])


def test_other_formats_are_not_opened(decoder):
    for format in ("TIFF", "PPM", "EPS", "PDF", "TGA", "ICO", "JPEG2000"):
        assert "is not an image, or is damaged" in refused(decoder, encoded(quadrants(), format))
    assert "is not an image, or is damaged" in refused(decoder, b"%PDF-1.7 ...")
    assert "is empty" in refused(decoder, b"")


def test_heic_without_its_library(decoder):
    if importlib.util.find_spec("pillow_heif") is not None:
        pytest.skip("it is installed")
    assert "pillow-heif is not installed" in refused(decoder, b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")


@pytest.mark.slow
def test_files(tmp_path, decoder):
    path = tmp_path / "a.png"
    path.write_bytes(encoded(quadrants(), "PNG"))
    assert decoder.inspect(path) == ImageFacts("png", 64, 32)
    assert corners(decoder.pixels(path)) == [RED, GREEN, BLUE, WHITE]
    assert decoder.pixels(path, most_pixels=100).width == 8

    with pytest.raises(ImageError, match=r"^missing\.png cannot be read: No such file or directory\.$"):
        decoder.inspect(tmp_path / "missing.png")
    with pytest.raises(ImageError, match=r"cannot be read: it is not a regular file\."):
        decoder.inspect(Path(os.devnull))
    path.write_bytes(b"GIF89a")
    with pytest.raises(ImageError, match=r"^a\.png is "):
        decoder.inspect(path)
    with path.open("wb") as file:
        file.truncate(file_decoder.MAX_FILE_BYTES + 1)
    with pytest.raises(ImageError, match=r"^a\.png is larger than 64 MiB, the limit\.$"):
        decoder.inspect(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX")
def test_a_named_pipe_is_not_waited_for(tmp_path, decoder):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ImageError, match="it is not a regular file"):
        decoder.inspect(tmp_path / "pipe")


def test_a_large_file_comes_in_parts(decoder, monkeypatch):
    monkeypatch.setattr(file_decoder, "PART", 1000)
    data = encoded(quadrants(100, 100), "BMP")
    assert len(data) > 30_000
    assert corners(decoder.pixels(data)) == [RED, GREEN, BLUE, WHITE]


def test_a_child_that_is_lost_is_replaced():
    data = encoded(quadrants(), "PNG")
    with Decoder() as decoder:
        decoder.inspect(data)
        first = decoder._child
        assert first is not None
        first._process.kill()
        first._process.wait()
        assert decoder.inspect(data).width == 64
        assert decoder._child is not first


def test_a_child_that_is_lost_amid_an_image_is_an_error(monkeypatch):
    with Decoder() as decoder:
        decode = decoder._decode

        def dying(*asked):
            decoded = decode(*asked)
            assert decoder._child is not None
            decoder._child._process.kill()
            decoder._child._process.wait()
            return decoded

        monkeypatch.setattr(decoder, "_decode", dying)
        with pytest.raises(ImageError, match="the process that decodes it died"):
            decoder.pixels(encoded(quadrants(), "PNG"))


@pytest.mark.slow
def test_time_is_limited(monkeypatch):
    monkeypatch.setattr(images, "TIME_LIMIT", 0.05)
    noise = encoded(Image.effect_noise((3000, 2000), 60).convert("RGB"), "PNG")
    with Decoder() as decoder:
        begin = time.monotonic()
        with pytest.raises(ImageError, match="was still running after 0 seconds"):
            decoder.inspect(noise)
        assert time.monotonic() - begin < 15


@pytest.mark.slow
def test_memory_is_limited(monkeypatch):
    monkeypatch.setattr(images, "MEMORY_LIMIT", 120 * 2**20)
    with Decoder() as decoder, pytest.raises(ImageError, match="MiB of memory"):
        decoder.pixels(bomb(8000, 8000))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux limits address space")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "box", "expected"),
    [
        ((640, 320), (200, 200), (200, 100)),
        ((64, 32), (200, 200), (64, 32)),
        ((3000, 2000), (300, 20), (30, 20)),
        ((5000, 10), (100, 100), (100, 1)),
    ],
)
def test_an_image_is_scaled_down_to_fit_into_a_box(size, box, expected):
    with Decoder() as decoder:
        found = decoder.pixels(encoded(quadrants(*size), "PNG"), most_pixels=4 * box[0] * box[1], box=box)
    assert (found.width, found.height) == expected
    assert len(found.rgb) == 3 * found.width * found.height


@pytest.mark.slow
def test_memory_is_limited_inside():
    import subprocess

    code = f"""
import io, sys
from edgechat.base.process import child
from edgechat.base.images.decoding_child import Decode, _decode
child.limit_memory(400 * 2**20)
print(_decode(io.BytesIO(sys.stdin.buffer.read()), Decode({MAX_PIXELS}))[0].problem)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], input=bomb(8000, 8000), capture_output=True, timeout=60
    )
    assert done.stdout.decode().strip() == "takes too much memory to decode", done.stderr


def survives(seeds):
    """Return how many mutated images could be decoded all the same."""
    n_sound = 0
    with Decoder() as decoder:
        for seed in seeds:
            facts, found = (outcome(one, mutated(seed)) for one in (decoder.inspect, decoder.pixels))
            if isinstance(facts, str):
                assert facts == found, seed
                assert facts.isprintable(), seed
            else:
                assert isinstance(found, Pixels), (seed, found)
                assert (found.width, found.height) == (facts.width, facts.height), seed
                assert len(found.rgb) == 3 * found.width * found.height, seed
                n_sound += 1
    return n_sound


def outcome(decode, data):
    try:
        return decode(data)
    except ImageError as error:
        return error.message


@pytest.mark.slow
def test_mutated_images(decoder):
    for data in sound():
        decoder.inspect(data)
    assert 50 < survives(range(400)) < 350


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
def test_mutated_images_without_number(part):
    survives(range(1000 + 1000 * part, 2000 + 1000 * part))
