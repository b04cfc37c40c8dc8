"""Mutations of sound headers, and the one law for them: a header, or a ModelFileError."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable
from functools import cache, partial

from edgechat.errors import ModelFileError
from edgechat.models.gguf import NeedMoreBytes, parse_header
from edgechat.models.header import ModelHeader
from edgechat.planner.memory import cache_bytes, cache_bytes_per_token, recurrent_bytes
from tests.kit import KINDS, tiny
from tests.models.raw import ARCHITECTURE, entry, gguf, strings, tensor

PROPERTIES = [name for name, value in vars(ModelHeader).items() if isinstance(value, property)]

NUMBERS = [0, 1, 2, 7, 31, 32, 33, 255, 256, 1025, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1]
NUMBERS += [2**33, 2**48, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
PIECES = [struct.pack("<Q", n) for n in NUMBERS] + [struct.pack("<I", n % 2**32) for n in NUMBERS]
PIECES += [b"\xff", b"\0", b"GGUF", b"\x09\0\0\0", b"\x08\0\0\0", b"llama.block_count"]


@cache
def sound() -> tuple[bytes, ...]:
    """Return small sound headers, with a few bytes of what follows."""
    written = gguf(
        [ARCHITECTURE, entry("llama.block_count", 2), entry("words", strings(["a", "bc"])), entry("f", 0.5)],
        [tensor("a", (32, 2)), tensor("b", (256, 1), 12, 256)],
        data=512,
    )
    files = [tiny(kind).read_bytes() for kind in KINDS]
    headers = [data[: parse_header(data, len(data)).data_offset + 16] for data in files]
    return (written, *headers)


def mutated(seed: int) -> tuple[bytes, int]:
    """Return a damaged header and the size its file is said to have."""
    rng = random.Random(seed)
    data = bytearray(rng.choice(sound()))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(data) + 1)
        piece = rng.choice(PIECES)
        match rng.randrange(5):
            case 0:
                data[at : at + len(piece)] = piece
            case 1:
                data[at:at] = piece
            case 2:
                del data[at : at + rng.choice((1, 4, 8, 100))]
            case 3:
                data = data[: max(at, 1)]
            case _:
                data[at : at + 1] = bytes([rng.randrange(256)])
        data = data or bytearray(b"G")
    size = rng.choice((len(data), len(data) + 2_000_000, 2**40))
    return bytes(data), size


def hold(data: bytes, file_size: int) -> str:
    """Parse and ask everything a header can answer; return what came of it. Other exceptions go up."""
    try:
        header = parse_header(data, file_size, "fuzz.gguf")
    except (ModelFileError, NeedMoreBytes) as error:
        return _refusal(error, len(data), file_size)
    for name in PROPERTIES:
        _ask(partial(getattr, header, name))
    _ask(lambda: cache_bytes(header, 4096, "q8_0"))
    _ask(lambda: cache_bytes_per_token(header))
    _ask(lambda: recurrent_bytes(header, 2))
    return "read"


def _refusal(error: ModelFileError | NeedMoreBytes, n: int, file_size: int) -> str:
    if isinstance(error, NeedMoreBytes):
        assert n < error.at_least <= file_size
        return "unfinished"
    assert error.message.isprintable(), error.message
    assert error.hint
    return "refused"


def _ask(question: Callable[[], object]) -> None:
    with contextlib.suppress(ModelFileError):
        question()
