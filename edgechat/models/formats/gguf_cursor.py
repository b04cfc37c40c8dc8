"""A cursor over the bytes of a GGUF header, with bounds checks."""

from __future__ import annotations

import struct

from edgechat.base.errors import ModelFileError
from edgechat.models.formats.header import GgufArray, Scalar, Value
from edgechat.models.formats.limits import AGAIN, show

MAX_HEADER = 128 << 20
"""The largest known, with a vocabulary of 262,144, takes 16 MB."""
MAX_KEPT = 32 << 20
"""Bytes of text kept of one file."""
MAX_KEPT_VALUES = 1024
"""Longer arrays are skipped."""
MAX_STRINGS = 2_000_000
"""Strings in the arrays of one file: more than twice the largest vocabulary with its merges."""

Buffer = bytes | bytearray | memoryview

STRING, ARRAY = 8, 9
SCALARS = {
    "uint8": (0, "B"),
    "int8": (1, "b"),
    "uint16": (2, "H"),
    "int16": (3, "h"),
    "uint32": (4, "I"),
    "int32": (5, "i"),
    "float32": (6, "f"),
    "bool": (7, "?"),
    "uint64": (10, "Q"),
    "int64": (11, "q"),
    "float64": (12, "d"),
}
"""Types of metadata: their numbers in a file, and struct's codes for them."""
_LAYOUTS = {number: (name, struct.Struct("<" + code)) for name, (number, code) in SCALARS.items()}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class NeedMoreBytes(Exception):
    """The header and the file go on beyond the available bytes."""

    def __init__(self, at_least: int) -> None:
        super().__init__(f"the header needs at least {at_least} bytes")
        self.at_least = at_least


class Cursor:
    """A position in the available bytes, checked before every step forward."""

    __slots__ = ("at", "data", "file_size", "kept", "name", "strings")

    def __init__(self, data: Buffer, file_size: int, name: str) -> None:
        self.data = data
        self.file_size = max(file_size, len(data))
        self.name = name
        self.at = 0
        self.kept = 0
        self.strings = 0

    def need(self, n: int) -> int:
        """Return the position, and advance it by n bytes."""
        end = self.at + n
        if end > self.file_size:
            raise cut_header(self.name, end - self.file_size)
        if end > MAX_HEADER:
            raise damaged(self.name, f"its header would be larger than {MAX_HEADER >> 20} MiB")
        if end > len(self.data):
            raise NeedMoreBytes(end)
        start, self.at = self.at, end
        return start

    def u32(self) -> int:
        """Return an unsigned number of four bytes."""
        number: int = _U32.unpack_from(self.data, self.need(4))[0]
        return number

    def u64(self) -> int:
        """Return an unsigned number of eight bytes."""
        number: int = _U64.unpack_from(self.data, self.need(8))[0]
        return number

    def check_count(self, what: str, n: int, limit: int, least: int) -> None:
        """Refuse a count above the limit, or for which the file is too short at `least` bytes each."""
        if n > limit:
            raise damaged(self.name, f"it claims {n} {what}, more than {limit}")
        if n * least > self.file_size - self.at:
            raise cut_header(self.name, n * least - (self.file_size - self.at))

    def text(self, limit: int) -> bytes:
        """Return a string's bytes, `limit` at most."""
        n = self.u64()
        if n > limit:
            raise damaged(self.name, f"a string of {n} bytes exceeds the limit of {limit}")
        start = self.need(n)
        return bytes(self.data[start : start + n])

    def key(self, limit: int) -> str:
        """Return a name: of a metadata entry or of a tensor."""
        raw = self.text(limit)
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise damaged(self.name, f"the name {raw[:40]!r} is not UTF-8") from None
        if not text:
            raise damaged(self.name, "a metadata entry has no name")
        return text

    def string(self) -> str:
        """Return a string value; invalid UTF-8 is replaced, since only users and templates read it."""
        raw = self.text(MAX_KEPT - self.kept)
        self.kept += len(raw)
        return raw.decode(errors="replace")

    def value(self, key: str) -> tuple[str, Value]:
        """Return the type of a metadata entry ('uint32', 'string', 'array', ...), and its value."""
        kind = self.u32()
        if kind == STRING:
            return "string", self.string()
        if kind == ARRAY:
            return "array", self.array(key)
        name, form = self.form(key, kind)
        scalar: Scalar = form.unpack_from(self.data, self.need(form.size))[0]
        return name, scalar

    def form(self, key: str, kind: int) -> tuple[str, struct.Struct]:
        """Return name and layout of a scalar type."""
        if kind not in _LAYOUTS:
            raise damaged(self.name, f"the metadata entry {show(key)} has the unknown type {kind}")
        return _LAYOUTS[kind]

    def array(self, key: str) -> GgufArray:
        """Return an array: the values of a short one, only the length of a long one."""
        kind, n = self.u32(), self.u64()
        keep = n <= MAX_KEPT_VALUES
        if kind == STRING:
            self.strings += n
            self.check_count(f"strings in {show(key)}", self.strings, MAX_STRINGS, 0)
            self.check_count(f"strings in {show(key)}", n, MAX_STRINGS, 8)
            if keep:
                return GgufArray("string", n, tuple(self.string() for _ in range(n)))
            self.skip_strings(n)
            return GgufArray("string", n, None)
        if kind == ARRAY:
            raise damaged(self.name, f"the metadata entry {show(key)} is an array of arrays")
        type_name, form = self.form(key, kind)
        start = self.need(n * form.size)
        if not keep:
            return GgufArray(type_name, n, None)
        values = struct.unpack_from(f"<{n}{form.format[-1]}", self.data, start)
        return GgufArray(type_name, n, values)

    def skip_strings(self, n: int) -> None:
        """Skip n strings, often hundreds of thousands, so bounds are checked in one tight loop."""
        data, at, length_at = self.data, self.at, _U64.unpack_from
        last = len(data) - 8
        for left in range(n, 0, -1):
            if at > last:
                self.at = min(at, len(data))
                self.need(at + 8 * left - self.at)
            at += 8 + length_at(data, at)[0]
        self.need(at - self.at)


def damaged(name: str, why: str) -> ModelFileError:
    """Return the error for a file that breaks the format's rules."""
    return ModelFileError(f"{name} is not a valid GGUF file: {why}.", hint=AGAIN)


def cut_header(name: str, missing: int) -> ModelFileError:
    """Return the error for a file that ends inside its header, at least `missing` bytes too early."""
    return ModelFileError(f"{name} is truncated: at least {missing} bytes are missing.", hint=AGAIN)


def cut_short(name: str, missing: int, size: int) -> ModelFileError:
    """Return the error for a file of `size` bytes that should have `missing` more."""
    return ModelFileError(
        f"{name} is truncated: of its {size + missing} bytes, {missing} are missing.", hint=AGAIN
    )
