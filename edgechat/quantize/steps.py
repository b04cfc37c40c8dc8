"""The steps of creating a model file: requests to the child process, and its answers."""

from __future__ import annotations

import msgspec

from edgechat.bench.process import BenchFailure, BenchProgress
from edgechat.native.params import LoadParams
from edgechat.quantize.mixtures import TensorOption


class DryStep(msgspec.Struct, frozen=True, tag=True):
    """Find the types that llama.cpp would choose at each of the given levels."""

    source: str
    file_types: tuple[int, ...]
    has_importance: bool


class ImatrixStep(msgspec.Struct, frozen=True, tag=True):
    """Compute an importance matrix and write it to `target`."""

    source: str
    load: LoadParams
    text: str
    """Path to a text, or '' for the text shipped with edgechat."""
    target: str


class ProbeStep(msgspec.Struct, frozen=True, tag=True):
    """Measure the loss that storing each tensor of an unquantized source in each type would cause."""

    sources: tuple[str, ...]
    """The paths of all shards."""
    load: LoadParams
    text: str
    imatrix: str
    tensors: tuple[str, ...]
    """The names of the tensors that may be quantized."""
    n_groups: int = 64
    """Approximate number of groups to probe."""
    n_chunks: int = 2
    """Number of chunks (256 tokens each, half of them scored)."""


class WriteStep(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Write a model file."""

    source: str
    target: str
    file_type: int
    threads: int
    imatrix: str = ""
    types: dict[str, str] = {}
    """Types that override those of the level, keyed by tensor name."""
    metadata: dict[str, str | int | float] = {}
    keep_split: bool = False


class MeasureStep(msgspec.Struct, frozen=True, tag=True):
    """Measure how far each file's predictions diverge from those of the source."""

    source: str
    files: tuple[str, ...]
    load: LoadParams
    text: str
    n_chunks: int = 8
    """Number of chunks (512 tokens each, half of them scored)."""


class QuantizeTask(msgspec.Struct, frozen=True, tag=True):
    """A request to run one step in a child process."""

    step: DryStep | ImatrixStep | ProbeStep | WriteStep | MeasureStep


class TargetTypes(msgspec.Struct, frozen=True, tag=True):
    """The type of each tensor at each level, as named in `GgmlType`; '' for tensors that keep their type."""

    types: list[dict[str, str]]


class TensorOptions(msgspec.Struct, frozen=True, tag=True):
    """The possible types for each tensor, with their sizes and losses, keyed by tensor."""

    options: dict[str, list[TensorOption]]


class MeasuredLosses(msgspec.Struct, frozen=True, tag=True):
    """The mean divergence of each file, in nats."""

    losses: tuple[float, ...]


class Done(msgspec.Struct, frozen=True, tag=True):
    """Reports that the file was written."""


StepAnswer = BenchProgress | BenchFailure | TargetTypes | TensorOptions | MeasuredLosses | Done
