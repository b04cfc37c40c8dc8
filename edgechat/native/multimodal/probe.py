"""Properties of a projector, read in a child process because a damaged file may crash it.

libmtmd asserts that shapes match, so a file whose header passes our size-limited reader may still end the
process that loads it. The child lets libmtmd build its encoder without weights, for an image of the usual
size. A projector that survives this will load and encode.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from edgechat.base.errors import EdgechatError, LoadFailed, by_name
from edgechat.base.process.ask import ChildFailed, answer, ask
from edgechat.native.breakdown import StdMap, StdMapNode, nodes

TIME_LIMIT = 20.0
"""Time limit in seconds. Without weights, a CPU answers in 0.3; GPU drivers may take several."""

_SYMBOL = "_Z21mtmd_get_memory_usagePKc19mtmd_context_params"
_MOST_DEVICES = 64
_COMPUTE = re.compile(r": +(\S+) compute buffer size = +([\d.]+) MiB")
_SIZE = re.compile(r": model size: +([\d.]+) MiB")
_MIB = 2**20


class ProjectorFacts(msgspec.Struct, frozen=True):
    """The kinds of input that a projector accepts, and its memory use."""

    sees: bool
    hears: bool
    memory: dict[str, int]
    """Bytes of weights and compute buffers, keyed by device: 'CPU', 'CUDA0', ..."""


class _ProbeQuestion(msgspec.Struct, frozen=True):
    path: str
    device: str
    max_tokens: int
    portable: bool


class _ProbeAnswer(msgspec.Struct, frozen=True):
    """The child's answer, or the reason why there is none."""

    facts: ProjectorFacts | None = None
    error: str = ""
    """The name of a subclass of EdgechatError."""
    message: str = ""
    hint: str | None = None


def probe(
    path: Path, *, device: str = "", max_tokens: int = 0, portable: bool = False, limit: float = TIME_LIMIT
) -> ProjectorFacts:
    """Ask a child about a projector with these parameters (see `Projector`).

    The weights need not be present: a header is enough if its file is extended to the full size. Memory for
    the weights is still allocated for a moment. If a device has too little memory, the child ends as it does
    for a damaged file. portable: avoid libmtmd's C++ interface, at the cost of reading the weights. Raises
    BackendMissing, or LoadFailed for a file that libmtmd rejects or that ends the child.
    """
    question = msgspec.msgpack.encode(_ProbeQuestion(str(path), device, max_tokens, portable))
    try:
        reply = msgspec.msgpack.decode(ask("projector", question, limit=limit), type=_ProbeAnswer)
    except (ChildFailed, msgspec.DecodeError) as error:
        raise _unloadable(path, f"the process that tried it {error}") from error
    if reply.facts is None:
        raise by_name(reply.error)(reply.message, hint=reply.hint)
    return reply.facts


def _unloadable(path: Path, reason: str) -> LoadFailed:
    return LoadFailed(
        f"llama.cpp cannot load {path.name}: {reason}",
        hint="Download it again, or use the projector that was published with the model.",
    )


def main() -> None:
    """Answer the parent's question about one projector."""

    def encoded(question: bytes) -> bytes:
        try:
            reply = _ProbeAnswer(_facts(msgspec.msgpack.decode(question, type=_ProbeQuestion)))
        except EdgechatError as error:
            reply = _ProbeAnswer(error=type(error).__name__, message=error.message, hint=error.hint)
        return msgspec.msgpack.encode(reply)

    answer(encoded)


def has_map() -> bool:
    """Return True if libmtmd's own memory figures can be read from a std::map with libstdc++'s layout."""
    from edgechat.native.multimodal.library import library

    return sys.platform == "linux" and hasattr(library, _SYMBOL)


def _facts(question: _ProbeQuestion) -> ProjectorFacts:
    from edgechat.native import ggml, logs
    from edgechat.native.multimodal.library import lib
    from edgechat.native.multimodal.projector import parameters

    logs.install()
    ggml.start()
    logs.add(lib.mtmd_helper_log_set)
    path = question.path.encode()
    params = parameters(device=question.device, max_tokens=question.max_tokens)
    memory = _from_map(path, params) if has_map() and not question.portable else {}
    if not memory:  # even if libmtmd failed, since it gives no reason
        logs.last_errors.clear()
        with logs.recording() as lines:
            projector = lib.mtmd_init_from_file(path, None, params)
        memory = _from_log(lines, question.device) if projector else {}
    if not memory:
        raise _unloadable(Path(question.path), logs.cause())
    caps = lib.mtmd_get_cap_from_file(path)
    return ProjectorFacts(sees=caps.inp_vision, hears=caps.inp_audio, memory=memory)


class _DeviceNode(StdMapNode):
    """Maps a device to a number of bytes."""

    _fields_ = (
        ("device", ctypes.c_void_p),
        ("n_bytes", ctypes.c_size_t),
    )


def _from_map(path: bytes, params: object) -> dict[str, int]:
    """Return libmtmd's own figures, exact to the byte, or {} if it fails. Leaks the map, which is small."""
    from edgechat.native import ggml
    from edgechat.native.multimodal.library import lib, library

    read = getattr(library, _SYMBOL)
    read.argtypes, read.restype = [ctypes.c_char_p, lib.mtmd_context_params], StdMap
    found: Counter[str] = Counter()
    try:
        for node in nodes(read(path, params), _DeviceNode, most=_MOST_DEVICES):
            device = ggml.CPU if ggml.is_processor(node.device) else ggml.device_name(node.device)
            found[device] += node.n_bytes
    except ValueError as error:
        raise LoadFailed("libmtmd's account of its memory is not laid out as expected") from error
    return dict(found)


def _from_log(lines: Iterable[str], device: str) -> dict[str, int]:
    """Derive the memory use from what libmtmd logs while loading a projector, rounded to 0.01 MiB.

    libmtmd logs the file's size for each encoder, and a buffer's size again whenever it grows.
    """
    from edgechat.native import ggml

    names = {buffer: name for name, buffer in ggml.buffer_types().items()}
    found: Counter[str] = Counter()
    weights = 0.0
    compute: dict[str, float] = {}
    for line in lines:
        if match := _SIZE.search(line):
            found.update({name: round(size * _MIB) for name, size in compute.items()})
            weights, compute = float(match[1]), {}
        elif match := _COMPUTE.search(line):
            compute[names.get(match[1], ggml.CPU)] = float(match[2])
    found.update({name: round(size * _MIB) for name, size in compute.items()})
    if weights:
        found[device or ggml.CPU] += round(weights * _MIB)
    return dict(found)
