"""What llama.cpp allocates for a model and a context, as plain values: nothing native is imported here."""

from __future__ import annotations

import msgspec

_MAPPED = "_Mapped"


class Buffer(msgspec.Struct, frozen=True):
    """The contents of the buffers of one type, in bytes."""

    name: str
    """llama.cpp's name of the type: 'CPU', 'CPU_REPACK', 'CUDA0', ..."""
    is_host: bool
    """Whether it is in RAM."""
    weights: int = 0
    cache: int = 0
    compute: int = 0
    device: str = "CPU"
    """The device whose memory it takes: 'CPU', also for what is pinned in RAM for a GPU, 'CUDA0', ..."""

    @property
    def total(self) -> int:
        """Bytes of all three."""
        return self.weights + self.cache + self.compute


class Breakdown(msgspec.Struct, frozen=True):
    """What a model with one context takes."""

    buffers: tuple[Buffer, ...]
    output: int
    """Bytes of the rows of logits, in the machine's own memory; llama.cpp's breakdown leaves them out."""
    n_ctx: int
    """Cells of the cache, after llama.cpp's rounding."""

    @property
    def weights(self) -> int:
        """Bytes of the weights, on all devices."""
        return sum(buffer.weights for buffer in self.buffers)

    @property
    def cache(self) -> int:
        """Bytes of keys, values and recurrent states, on all devices."""
        return sum(buffer.cache for buffer in self.buffers)

    @property
    def compute(self) -> int:
        """Bytes to compute with and to hand out logits, on all devices."""
        return sum(buffer.compute for buffer in self.buffers) + self.output


def with_head(model: tuple[Buffer, ...], head: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
    """Return the buffers of a model and its context with those of its head, whose weights are the same."""
    merged = {buffer.name: buffer for buffer in model}
    for buffer in head:
        old = merged.get(buffer.name, Buffer(buffer.name, buffer.is_host, device=buffer.device))
        merged[buffer.name] = msgspec.structs.replace(
            old,
            weights=max(old.weights, buffer.weights),
            cache=old.cache + buffer.cache,
            compute=old.compute + buffer.compute,
        )
    return tuple(sorted(merged.values(), key=lambda buffer: buffer.name))


def is_mapped(buffer: Buffer) -> bool:
    """Say whether the weights in it are pages of the file."""
    return buffer.name.endswith(_MAPPED)


def counted_once(buffers: tuple[Buffer, ...], weights: int) -> tuple[Buffer, ...]:
    """Return the buffers of a load that maps its file, as they would be without the mapping.

    A mapped range holds the pages of all tensors between its first and its last, those among them that other
    buffers hold a copy of. The kernel takes such pages back when it needs them, so they count once.
    weights: bytes of all tensors of the file.
    """
    copied = sum(buffer.weights for buffer in buffers if not is_mapped(buffer))
    merged: dict[str, Buffer] = {}
    for buffer in buffers:
        name = buffer.name.removesuffix(_MAPPED)
        taken = min(buffer.weights, max(0, weights - copied)) if is_mapped(buffer) else buffer.weights
        old = merged.get(name, Buffer(name, buffer.is_host, device=buffer.device))
        merged[name] = msgspec.structs.replace(
            old,
            weights=old.weights + taken,
            cache=old.cache + buffer.cache,
            compute=old.compute + buffer.compute,
        )
    return tuple(merged.values())
