"""A context's memory use by buffer type, as reported by llama.cpp.

A function in llama.cpp's C++ interface returns the figures in a std::map. If the build exports that function
and the map's layout is known (libstdc++, hence only on Linux), the figures are read from the map and are
exact to the byte. Otherwise they come from the log, rounded to 0.01 MiB, except for the weights, whose sizes
come from the file's tensor table. See llama-ext.h for the function and stl_tree.h for the layout.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from edgechat.native import ggml
from edgechat.native.handles import Context, Model
from edgechat.native.params import Breakdown, Buffer

_SYMBOL = "_Z26llama_get_memory_breakdownPK13llama_context"
_MOST_TYPES = 256
_ALIGNMENT = 32
_MIB = 2**20


class StdMap(ctypes.Structure):
    """libstdc++'s std::map: a stateless comparator followed by the header of a red-black tree."""

    _fields_ = (
        ("compare", ctypes.c_uint64),
        ("color", ctypes.c_uint64),
        ("root", ctypes.c_void_p),
        ("leftmost", ctypes.c_void_p),
        ("rightmost", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
    )


class StdMapNode(ctypes.Structure):
    """A node of a `StdMap`'s tree; subclasses append the fields for the key and the value."""

    _fields_: ClassVar[Sequence[tuple[str, type[Any]]]] = (
        ("color", ctypes.c_uint64),
        ("parent", ctypes.c_void_p),
        ("left", ctypes.c_void_p),
        ("right", ctypes.c_void_p),
    )


Node = TypeVar("Node", bound=StdMapNode)


def nodes(tree: StdMap, kind: type[Node], *, most: int) -> Iterator[Node]:
    """Yield the nodes of a map with at most `most` nodes. Raises ValueError if the layout is unexpected."""
    found, addresses = 0, [tree.root]
    while addresses and found <= tree.count <= most:
        address = addresses.pop()
        if address:
            node = kind.from_address(address)
            found += 1
            yield node
            addresses += [node.left, node.right]
    if found != tree.count:
        raise ValueError("llama.cpp's breakdown is not laid out as expected")


class _Node(StdMapNode):
    """Maps a buffer type to the bytes used for the model, the context and computation."""

    _fields_ = (
        ("type", ctypes.c_void_p),
        ("model", ctypes.c_size_t),
        ("context", ctypes.c_size_t),
        ("compute", ctypes.c_size_t),
    )


def has_map() -> bool:
    """Return True if `from_map` works with this build of llama.cpp."""
    return sys.platform == "linux" and ggml.exported(_SYMBOL) is not None


def from_map(model: Model, context: Context) -> Breakdown:
    """Return llama.cpp's own breakdown. Requires `has_map`. Leaks the map's nodes, which are few."""
    read = ggml.exported(_SYMBOL)
    read.argtypes, read.restype = [ctypes.c_void_p], StdMap
    buffers = [_buffer(node) for node in nodes(read(context.pointer), _Node, most=_MOST_TYPES)]
    buffers.sort(key=lambda buffer: buffer.name)
    return Breakdown(tuple(buffers), context.output_bytes, context.n_ctx)


def _buffer(node: _Node) -> Buffer:
    device = ggml.holder(node.type)
    # ggml calls a buffer a host buffer only if it is directly readable; repacked weights are not.
    is_host = device == ggml.CPU or ggml.ask("ggml_backend_buft_is_host", ctypes.c_bool, node.type)
    name = ggml.buffer_type_name(node.type)
    return Buffer(name, is_host, node.model, node.context, node.compute, device)


_LAYER = re.compile(r"load_tensors: layer +(\d+) assigned to device (\S+?),")
_OVERRIDE = re.compile(r"tensor (\S+) .*buffer type overridden to (\S+)")
_HOLDS = re.compile(r"layer +\d+: dev = (\S+)")
_CACHE = re.compile(r": size = +([\d.]+) MiB")
_COMPUTE = re.compile(r": +(\S+) compute buffer size = +([\d.]+) MiB")
_EVERYWHERE = ("rope_freqs.", "rope_factors_")
"""Name prefixes of tensors that belong to no layer and are copied to every device."""


def from_log(model: Model, context: Context, lines: Iterable[str], tensors: Mapping[str, int]) -> Breakdown:
    """Derive the breakdown from what llama.cpp logged while creating the model and the context.

    tensors: the size of each tensor in the file, keyed by name. Repacked weights are not listed separately.
    """
    layers: dict[int, str] = {}
    moved: set[str] = set()
    cache: dict[str, float] = defaultdict(float)
    compute: dict[str, float] = defaultdict(float)
    holders: Counter[str] = Counter()
    for line in lines:
        if match := _LAYER.search(line):
            layers[int(match[1])] = match[2]
        elif match := _OVERRIDE.search(line):
            moved.add(match[1])
        elif match := _HOLDS.search(line):
            holders[match[1]] += 1
        elif match := _CACHE.search(line):
            # Logged once for all devices. All layers of a cache have the same size.
            for device, n in holders.items():
                cache[device] += float(match[1]) * n / holders.total()
            holders.clear()
        elif match := _COMPUTE.search(line):
            compute[match[1]] = float(match[2])  # the last one counts: a buffer may be reserved several times
    weights = _weights(model.architecture, layers, moved, tensors)
    return Breakdown(_named(weights, cache, compute), context.output_bytes, context.n_ctx)


def _named(
    weights: Mapping[str, int], cache: Mapping[str, float], compute: Mapping[str, float]
) -> tuple[Buffer, ...]:
    """Return one buffer per type. The log lists weights and cache by device, and the rest by buffer type."""
    types = ggml.buffer_types()
    owners = {name: device for device, name in types.items()}
    buffers: list[Buffer] = []
    for name in sorted({types.get(device, device) for device in [*weights, *cache]} | {*compute}):
        is_host = name.startswith("CPU") or name.endswith("_Host")
        device = owners.get(name, ggml.CPU if is_host else name)
        # A device's figures belong to its usual buffers, not to those that it pins in RAM.
        own = device if types.get(device, device) == name else ""
        sizes = round(cache.get(own, 0) * _MIB), round(compute.get(name, 0) * _MIB)
        buffers.append(Buffer(name, device == ggml.CPU, weights.get(own, 0), *sizes, device))
    return tuple(buffers)


def _weights(
    architecture: str, layers: Mapping[int, str], moved: set[str], tensors: Mapping[str, int]
) -> Counter[str]:
    """Return how many bytes of weights are on each device.

    The output tensors are on the device of the last layer. Other tensors that belong to no layer stay in
    RAM or are copied to every device.
    """
    last = layers.get(max(layers, default=0), ggml.CPU)
    # In LFM2's files, the output norm is named 'token_embd_norm'.
    outputs = ("output", "token_embd_norm") if architecture.startswith("lfm2") else ("output",)
    sizes: Counter[str] = Counter()
    for name, n_bytes in tensors.items():
        devices: Iterable[str] = (last if name.startswith(outputs) else ggml.CPU,)
        if name in moved:  # always placed in RAM
            devices = (ggml.CPU,)
        elif match := re.match(r"blk\.(\d+)\.", name):
            devices = (layers.get(int(match[1]), ggml.CPU),)
        elif name.startswith(_EVERYWHERE):
            devices = set(list(layers.values())[:-1])
        for device in devices:
            sizes[device] += -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
    if "output.weight" not in tensors and last != ggml.CPU:
        sizes[last] += tensors.get("token_embd.weight", 0)  # tied embeddings: the device gets a copy
    return sizes
