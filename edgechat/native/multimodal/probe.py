"""What a projector is and takes, asked in a child process: a damaged file ends that, and nothing else.

libmtmd asserts where shapes do not fit each other, so what a bounded reader of the header has let pass may
still end the process that loads it. The child makes libmtmd build its encoder without weights, as it would
for a picture of its usual size: what survives that loads and encodes.
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
"""Seconds. Without weights a processor answers in 0.3; drivers of GPUs may take several to wake up."""

_SYMBOL = "_Z21mtmd_get_memory_usagePKc19mtmd_context_params"
_MOST_DEVICES = 64
_COMPUTE = re.compile(r": +(\S+) compute buffer size = +([\d.]+) MiB")
_SIZE = re.compile(r": model size: +([\d.]+) MiB")
_MIB = 2**20


class ProjectorFacts(msgspec.Struct, frozen=True):
    """What a projector is and takes."""

    sees: bool
    hears: bool
    memory: dict[str, int]
    """Bytes of weights and of what they are computed with, by device: 'CPU', 'CUDA0', ..."""


class _ProbeQuestion(msgspec.Struct, frozen=True):
    """The request to the child."""

    path: str
    device: str
    max_tokens: int
    portable: bool


class _ProbeAnswer(msgspec.Struct, frozen=True):
    """The child's answer, or why there is none."""

    facts: ProjectorFacts | None = None
    error: str = ""
    """The class of an EdgechatError."""
    message: str = ""
    hint: str | None = None


def probe(
    path: Path, *, device: str = "", max_tokens: int = 0, portable: bool = False, limit: float = TIME_LIMIT
) -> ProjectorFacts:
    """Ask a child what a projector is and takes with these parameters (see `Projector`).

    The weights need not be there: a header grown to the size of its file is enough. Their memory is taken for
    a moment all the same: where a device has less, the child ends as with a damaged file. portable: do
    without libmtmd's C++ interface, which reads the weights. Raises LoadFailed for a file that libmtmd
    refuses, or that ends the child; BackendMissing.
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
    """Answer for one projector."""

    def encoded(question: bytes) -> bytes:
        try:
            reply = _ProbeAnswer(_facts(msgspec.msgpack.decode(question, type=_ProbeQuestion)))
        except EdgechatError as error:
            reply = _ProbeAnswer(error=type(error).__name__, message=error.message, hint=error.hint)
        return msgspec.msgpack.encode(reply)

    answer(encoded)


def has_map() -> bool:
    """Say whether libmtmd's own account can be read: its std::map is laid out as libstdc++ does."""
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
    if not memory:  # also where that was refused, for it does not say why
        logs.last_errors.clear()
        with logs.recording() as lines:
            projector = lib.mtmd_init_from_file(path, None, params)
        memory = _from_log(lines, question.device) if projector else {}
    if not memory:
        raise _unloadable(Path(question.path), logs.cause())
    caps = lib.mtmd_get_cap_from_file(path)
    return ProjectorFacts(sees=caps.inp_vision, hears=caps.inp_audio, memory=memory)


class _DeviceNode(StdMapNode):
    """Device -> bytes."""

    _fields_ = (
        ("device", ctypes.c_void_p),
        ("n_bytes", ctypes.c_size_t),
    )


def _from_map(path: bytes, params: object) -> dict[str, int]:
    """Return libmtmd's own account, exact to the byte; its few nodes are leaked. Empty: it refused."""
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
    """Return what libmtmd logged while it loaded a projector, rounded to 0.01 MiB.

    It repeats the size of the file for each encoder in it, and that of buffers whenever they grow.
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
