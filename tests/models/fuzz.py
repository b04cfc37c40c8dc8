"""Mutated and contradictory headers. Reading one must return a header or raise ModelFileError."""

from __future__ import annotations

import contextlib
import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from edgechat.base.errors import ModelFileError
from edgechat.models.formats.gguf import NeedMoreBytes, parse_header
from edgechat.models.formats.header import ModelHeader
from edgechat.models.formats.quants import GgmlType
from edgechat.models.formats.skeleton import skeleton
from edgechat.planner.estimate.memory import cache_bytes_per_token, recurrent_bytes
from edgechat.planner.estimate.shape import shape_of
from tests.kit import KINDS, tiny
from tests.kit.shapes import metadata, tensors
from tests.models.raw import ARCHITECTURE, entry, gguf, strings, tensor, u32, u64
from tests.planner.headers import cache_bytes

PROPERTIES = [name for name, value in vars(ModelHeader).items() if isinstance(value, property)]

NUMBERS = [0, 1, 2, 7, 31, 32, 33, 255, 256, 1025, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1]
NUMBERS += [2**33, 2**48, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
PIECES = [struct.pack("<Q", n) for n in NUMBERS] + [struct.pack("<I", n % 2**32) for n in NUMBERS]
PIECES += [b"\xff", b"\0", b"GGUF", b"\x09\0\0\0", b"\x08\0\0\0", b"llama.block_count"]


@cache
def sound() -> tuple[bytes, ...]:
    """Return small valid headers, with the first few bytes after them."""
    written = gguf(
        [ARCHITECTURE, entry("llama.block_count", 2), entry("words", strings(["a", "bc"])), entry("f", 0.5)],
        [tensor("a", (32, 2)), tensor("b", (256, 1), 12, 256)],
        data=512,
    )
    files = [tiny(kind).read_bytes() for kind in KINDS]
    headers = [data[: parse_header(data, len(data)).data_offset + 16] for data in files]
    return (written, *headers)


def mutated(seed: int) -> tuple[bytes, int]:
    """Return a damaged header, and the claimed size of its file."""
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


@dataclass
class Draft:
    """A header in parts, before it is written, so that they can be made to contradict each other."""

    said: dict[str, Any]
    table: list[tuple[str, tuple[int, ...], int, int]]
    """Each tensor's name, shape, type and offset."""
    n_tensors: int | None = None
    n_entries: int | None = None
    size: int = 0
    """How many bytes the file is longer than stated; negative if it is shorter."""

    def settle(self) -> None:
        """Lay the tensors out one after another again, according to their current shapes and types."""
        at, settled = 0, []
        for name, shape, kind, _ in self.table:
            settled.append((name, shape, kind, at))
            at += -(-_bytes_of(shape, kind) // 32) * 32
        self.table = settled

    def written(self) -> tuple[bytes, int]:
        """Return the header, and its file's size."""
        entries = [entry(key, _value(value)) for key, value in self.said.items()]
        rows = [tensor(name, shape, kind, at % 2**64) for name, shape, kind, at in self.table]
        head = gguf(entries, rows, n_tensors=self.n_tensors, n_entries=self.n_entries)
        end = max((at + _bytes_of(shape, kind) for _, shape, kind, at in self.table), default=0)
        return head, max(len(head), min(len(head) + end, 2**62) + self.size)


def lying(seed: int) -> tuple[bytes, int]:
    """Return a header with contradictory counts, offsets, types and sizes, and its file's size."""
    rng = random.Random(seed)
    shape = KINDS[rng.choice(list(KINDS))]
    said: dict[str, Any] = {"general.architecture": shape.arch, f"{shape.arch}.vocab_size": 64}
    said |= {f"{shape.arch}.{key}": value for key, value in metadata(shape).items()}
    made = tensors(shape, 64, logit_scale=1.0, damped={})
    draft = Draft(said, [(one.name, one.shape, 0, 0) for one in made])
    draft.settle()
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(LIES)(draft, rng)
        if rng.random() < 0.5:
            draft.settle()
    return draft.written()


def _lie_of_counts(draft: Draft, rng: random.Random) -> None:
    real = len(draft.table)
    draft.n_tensors = rng.choice((None, real - 1, real + 1, 0, 16_641, 2**32, 2**64 - 1))
    draft.n_entries = rng.choice((None, len(draft.said) - 1, len(draft.said) + 1, 0, 2**63))


def _lie_of_place(draft: Draft, rng: random.Random) -> None:
    i, j = rng.randrange(len(draft.table)), rng.randrange(len(draft.table))
    name, shape, kind, at = draft.table[i]
    draft.table[i] = (
        name,
        shape,
        kind,
        rng.choice((draft.table[j][3], at + 32, at - 32, at + 1, 2**62, 2**64 - 32)),
    )


def _lie_of_shape(draft: Draft, rng: random.Random) -> None:
    i = rng.randrange(len(draft.table))
    name, shape, kind, at = draft.table[i]
    n = rng.choice(NUMBERS)
    draft.table[i] = (
        name,
        rng.choice(
            (
                shape[::-1],
                (*shape, 1),
                (*shape, n),
                (n, *shape[1:]),
                (*shape[:-1], n),
                (),
                (math.prod(shape),),
            )
        ),
        kind,
        at,
    )


def _lie_of_type(draft: Draft, rng: random.Random) -> None:
    for i in rng.sample(range(len(draft.table)), rng.choice((1, len(draft.table)))):
        name, shape, _, at = draft.table[i]
        draft.table[i] = (name, shape, rng.choice((*map(int, GgmlType), 4, 5, 24, 31, 99, 2**32 - 1)), at)


def _lie_of_names(draft: Draft, rng: random.Random) -> None:
    i = rng.randrange(len(draft.table))
    name, *rest = draft.table.pop(i)
    if rng.random() < 0.7:
        other = (name, f"blk.{rng.choice(NUMBERS)}.attn_q.weight", "junk", draft.table[0][0], "a" * 63)
        draft.table.insert(rng.randrange(len(draft.table)), (rng.choice(other), *rest))  # type: ignore[arg-type]


def _lie_of_metadata(draft: Draft, rng: random.Random) -> None:
    key = rng.choice(list(draft.said))
    if rng.random() < 0.15:
        del draft.said[key]
    else:
        lists = [[n] * rng.choice((0, 1, 2, 3, 600, 1025)) for n in rng.sample(NUMBERS, 2)]
        draft.said[key] = rng.choice(
            (*rng.sample(NUMBERS, 8), *lists, "x", "", True, -1.5, math.nan, math.inf)
        )


def _lie_of_frame(draft: Draft, rng: random.Random) -> None:
    draft.said |= rng.choice(
        (
            {"general.alignment": rng.choice((0, 1, 8, 64, 16_384, 2**20, 2**31))},
            {"split.count": rng.choice(NUMBERS), "split.no": rng.choice(NUMBERS)},
            {"tokenizer.ggml.tokens": ["a"] * rng.choice((0, 1, 63, 64, 65, 2000))},
            {"general.type": rng.choice(("adapter", "mmproj", "model"))},
            {"general.file_type": rng.choice(NUMBERS)},
        )
    )


def _lie_of_size(draft: Draft, rng: random.Random) -> None:
    draft.size = rng.choice((-1, -32, -10_000, 1, 31, 2**20, 2**20 + 1, 2**33, 2**40, 2**62))


LIES = (
    _lie_of_counts,
    _lie_of_place,
    _lie_of_shape,
    _lie_of_type,
    _lie_of_names,
    _lie_of_metadata,
    _lie_of_frame,
    _lie_of_size,
)


def _value(value: Any) -> Any:
    if isinstance(value, list):
        if value and isinstance(value[0], str):
            return strings(value)
        return u32(9) + u32(10) + u64(len(value)) + b"".join(map(u64, value))
    if type(value) is int and not 0 <= value < 2**32:
        return u32(10) + u64(value % 2**64)
    return value


def _bytes_of(shape: tuple[int, ...], kind: int) -> int:
    block, size = GgmlType(kind).block if kind in set(GgmlType) else (1, 1)
    return math.prod(shape) // block * size


def hold(data: bytes, file_size: int) -> str:
    """Parse a header and query everything; return the outcome. Only ModelFileError is caught."""
    try:
        header = parse_header(data, file_size, "fuzz.gguf")
    except (ModelFileError, NeedMoreBytes) as error:
        return _refusal(error, len(data), file_size)
    for name in PROPERTIES:
        _ask(partial(getattr, header, name))
    _ask(lambda: cache_bytes(header, 4096, "q8_0"))
    _ask(lambda: cache_bytes_per_token(header))
    _ask(lambda: recurrent_bytes(header, 2))
    _ask(lambda: shape_of(header))
    _ask(lambda: _same_in_a_skeleton(header))
    return "read"


def _same_in_a_skeleton(header: ModelHeader) -> None:
    made = skeleton(header)
    again = parse_header(made, len(made) + 2**62, "skeleton")
    assert [(one.name, one.shape, one.type) for one in again.tensors] == [
        (one.name, one.shape, one.type) for one in header.tensors
    ]
    assert again.architecture == header.architecture


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
