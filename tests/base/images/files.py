"""Image files of all kinds in memory, valid and damaged."""

from __future__ import annotations

import io
import random
import struct
import zlib
from functools import cache
from typing import Any

from PIL import Image, PngImagePlugin

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
EXIF_TURNS = (1, 2, 3, 4, 5, 6, 7, 8)
NUMBERS = [
    struct.pack(order, n) for n in (0, 1, 0x7FFF, 0xFFFF, 2**31 - 1, 2**32 - 1) for order in ("<I", ">I")
]
PIECES = [
    *NUMBERS,
    b"\xff",
    b"\0",
    b"\xff\xd8",
    b"\xff\xda",
    b"IDAT",
    b"IEND",
    b"GIF89a",
    b"VP8 ",
    b"\x21\xf9\x04",
]


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    """Return an image encoded as a file."""
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def quadrants(width: int = 64, height: int = 32, mode: str = "RGB") -> Image.Image:
    """Return an image with red, green, blue and white quadrants, in reading order."""
    image = Image.new("RGB", (width, height), RED)
    x, y = width // 2, height // 2
    image.paste(GREEN, (x, 0, width, y))
    image.paste(BLUE, (0, y, x, height))
    image.paste(WHITE, (x, y, width, height))
    return image.convert(mode)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, data: bytes, *, depth: int = 8, colour: int = 2) -> bytes:
    """Return a PNG whose header may claim anything."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(kind, one) for kind, one in chunks)


def bomb(width: int, height: int) -> bytes:
    """Return a black PNG a thousandth the size of its pixels."""
    packer = zlib.compressobj(9)
    row = bytes(3 * width + 1)
    return png(width, height, b"".join(packer.compress(row) for _ in range(height)) + packer.flush())


@cache
def sound() -> tuple[bytes, ...]:
    """Return small images in all formats, with features that make files complicated."""
    image = quadrants()
    exif = Image.Exif()
    exif[0x0112] = 6
    text = PngImagePlugin.PngInfo()
    text.add_text("a", "b" * 100, zip=True)
    frames = [quadrants(), quadrants().rotate(90), quadrants().rotate(180)]
    return (
        encoded(image, "PNG", pnginfo=text),
        encoded(image, "PNG", exif=exif),
        encoded(image.convert("P"), "PNG", transparency=0),
        encoded(quadrants(mode="RGBA"), "PNG"),
        encoded(frames[0], "PNG", save_all=True, append_images=frames[1:]),
        encoded(image, "JPEG", exif=exif),
        encoded(image, "JPEG", progressive=True),
        encoded(quadrants(mode="CMYK"), "JPEG"),
        encoded(quadrants(mode="L"), "JPEG"),
        encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        encoded(image, "GIF", transparency=0, interlace=1),
        encoded(image, "WEBP"),
        encoded(quadrants(mode="RGBA"), "WEBP", lossless=True, exif=exif),
        encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:]),
    )


def mutated(seed: int) -> bytes:
    """Return a damaged image."""
    rng = random.Random(seed)
    data = bytearray(rng.choice(sound()))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        # Decoders trust the start of a file most.
        at = rng.randrange(len(data) + 1) if rng.random() < 0.5 else rng.randrange(min(len(data), 64) + 1)
        piece = rng.choice(PIECES)
        match rng.randrange(5):
            case 0:
                data[at : at + len(piece)] = piece
            case 1:
                data[at:at] = piece
            case 2:
                del data[at : at + rng.randrange(1, 16)]
            case 3 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case _:
                del data[max(at, 8) :]
    return bytes(data)
