"""Child process that decodes images with Pillow; see `edgechat.base.images.image`.

A file of a few bytes can require gigabytes, and decoders are large C programs, so they run in a process with
limits on memory and time. Only the formats below are opened: Pillow supports many more, and some of those
start other programs.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import Any

import msgspec
from PIL import (
    Image,
    ImageFile,
    UnidentifiedImageError,
    WebPImagePlugin,  # noqa: F401 - registers WebP, for which Image.open would load all plugins
)
from PIL.Image import Transpose

from edgechat.base.images.image import (
    MAX_PIXELS,
    MAX_SIDE,
    MEMORY_LIMIT,
    TIME_LIMIT,
    Decode,
    Decoded,
    Format,
    Rows,
)
from edgechat.base.process import child, spawn
from edgechat.base.process.file_decoder import FilePart, NotDecodable, problem_of

MAX_JPEG_PIXELS = 1 << 28
"""Maximum pixels in a JPEG, which is scaled down while being decoded; some phones produce 200 million."""
_KNOWN = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Pillow's names for the formats."""
_FORMATS: dict[str | None, Format] = {
    "PNG": "png",
    "JPEG": "jpeg",
    "MPO": "jpeg",  # a sequence of JPEGs, as produced by phones
    "WEBP": "webp",
    "GIF": "gif",
    "BMP": "bmp",
    "HEIF": "heic",
}
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_ORIENTATION = 0x0112
_TURNS: dict[Any, Transpose] = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
"""Rotations and reflections that turn an image upright, keyed by its EXIF orientation."""
_SIDEWAYS = (Transpose.TRANSPOSE, Transpose.ROTATE_270, Transpose.TRANSVERSE, Transpose.ROTATE_90)
_ONLY = "Only PNG, JPEG, WebP, GIF, BMP and HEIC images can be used: convert it to one of them."
_AGAIN = "Open it in an image viewer; if that shows it, save it from there as PNG."


def main() -> None:
    """Answer FilePart with an empty message, Decode with Decoded, and Rows with bytes."""
    pipes = spawn.adopt_pipe()
    child.limit_memory(MEMORY_LIMIT)
    child.serve(pipes, _Decoding().answer, seconds=int(TIME_LIMIT) + 5)


class _Decoding:
    """Collects the parts of a file, then holds its pixels."""

    def __init__(self) -> None:
        self._file = bytearray()
        self._image: Image.Image | None = None

    def answer(self, question: bytes) -> bytes:
        """Return the answer to one message from the parent."""
        match msgspec.msgpack.decode(question, type=FilePart | Decode | Rows):
            case FilePart(data):
                self._image = None
                self._file += data
            case Decode() as how:
                file, self._file = io.BytesIO(self._file), bytearray()
                answer, self._image = _decode(file, how)
                return msgspec.msgpack.encode(answer)
            case Rows(first, count) if self._image is not None:
                band = (0, first, self._image.width, min(first + count, self._image.height))
                return self._image.crop(band).tobytes()
        return b""


def _decode(file: io.BytesIO, how: Decode) -> tuple[Decoded, Image.Image | None]:
    """Return the image and, unless it is only being checked, its pixels.

    Any exception is reported as a problem with the file.
    """
    try:
        image = _open(file)
        decoded, pixels = _scaled(image, how.most_pixels, check=how.check)
        if pixels is None or how.box is None:
            return decoded, pixels
        pixels.thumbnail(how.box)
        return msgspec.structs.replace(decoded, width=pixels.width, height=pixels.height), pixels
    except Exception as error:
        wrong = problem_of(error, smaller="Scale it down, and try again.", again=_AGAIN)
        return Decoded(problem=wrong.problem, hint=wrong.hint), None


def _open(file: io.BytesIO) -> ImageFile.ImageFile:
    """Read an image's header. Raises NotDecodable."""
    head = file.getvalue()[:16]
    is_heif = head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS
    if is_heif:
        _add_heif()

    Image.MAX_IMAGE_PIXELS = MAX_JPEG_PIXELS
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    try:
        image = Image.open(file, formats=["HEIF"] if is_heif else _KNOWN)
    except UnidentifiedImageError:
        if not head:
            raise NotDecodable("is empty", "Save or download it again.") from None
        raise NotDecodable("is not an image, or is damaged", _ONLY) from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise _too_large(MAX_JPEG_PIXELS) from None
    if image.width * image.height > MAX_PIXELS and not _is_jpeg(image):
        raise _too_large(MAX_PIXELS)
    return image


def _add_heif() -> None:
    try:
        import pillow_heif
    except ImportError:
        raise NotDecodable(
            "is a HEIC image, for which pillow-heif is not installed",
            "Save it as JPEG, or to read it: pip install pillow-heif",
        ) from None
    pillow_heif.register_heif_opener()


def _too_large(most: int) -> NotDecodable:
    return NotDecodable(f"has more than {most / 1e6:.0f} megapixels, the limit", "Scale it down.")


def _is_jpeg(image: ImageFile.ImageFile) -> bool:
    return _FORMATS[image.format] == "jpeg"


def _scaled(
    image: ImageFile.ImageFile, most_pixels: int, *, check: bool
) -> tuple[Decoded, Image.Image | None]:
    """Decode an image, scaled down by a power of two if it has too many pixels."""
    whole = image.size
    factor = 1
    while not _fits(_divided(whole, factor), most_pixels):
        factor *= 2
    rest = factor
    if _is_jpeg(image):
        # A JPEG is decoded faster at an eighth of its size, which is good enough for a check.
        n = 8 if check else min(8, factor)
        image.draft(None, (max(1, whole[0] // n), max(1, whole[1] // n)))
        rest //= next(n for n in (1, 2, 4, 8) if _divided(whole, n) == image.size)
    image.load()
    turn = _turn(image)
    width, height = _divided(whole, factor)
    if turn in _SIDEWAYS:
        width, height = height, width
    decoded = Decoded(_FORMATS[image.format], width, height)
    if check:
        return decoded, None
    rgb = _rgb(image)
    if rest > 1:
        rgb = rgb.reduce(rest)
    return decoded, rgb if turn is None else rgb.transpose(turn)


def _divided(size: tuple[int, int], factor: int) -> tuple[int, int]:
    """Divide a size as Pillow does: rounding up, so that no side becomes zero."""
    return -(-size[0] // factor), -(-size[1] // factor)


def _fits(size: tuple[int, int], most_pixels: int) -> bool:
    return max(size) <= MAX_SIDE and size[0] * size[1] <= max(1, most_pixels)


def _turn(image: Image.Image) -> Transpose | None:
    """Return the rotation from an image's EXIF data, or None if it is missing or damaged."""
    with contextlib.suppress(Exception):
        return _TURNS.get(image.getexif().get(_ORIENTATION))
    return None


def _rgb(image: Image.Image) -> Image.Image:
    """Convert an image of any mode to RGB, with white behind transparent parts."""
    if image.mode.startswith("I"):  # 16-bit gray, which convert() would clip at 255
        return image.point(lambda value: value / 256).convert("L").convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image.getchannel("A"))
    return white
