"""The steps of making a model file: what the child process is asked for, and what it answers."""

from __future__ import annotations

import msgspec

from edgechat.bench.process import BenchFailure, BenchProgress
from edgechat.native.params import LoadParams
from edgechat.quantize.mixtures import TensorOption


class DryStep(msgspec.Struct, frozen=True, tag=True):
    """Say which types tensors would get at some levels."""

    source: str
    file_types: tuple[int, ...]
    has_importance: bool


class ImatrixStep(msgspec.Struct, frozen=True, tag=True):
    """Compute an importance matrix and write it to `target`."""

    source: str
    load: LoadParams
    text: str
    """A file; '' for the text that ships."""
    target: str


class ProbeStep(msgspec.Struct, frozen=True, tag=True):
    """Measure what types would cost the tensors of a source without quantized ones."""

    sources: tuple[str, ...]
    """All shards."""
    load: LoadParams
    text: str
    imatrix: str
    tensors: tuple[str, ...]
    """Those that may be quantized."""
    n_groups: int = 64
    """In how many groups they are probed, about."""
    n_chunks: int = 2
    """Of 256 tokens, half of which are scored."""


class WriteStep(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Write a model file."""

    source: str
    target: str
    file_type: int
    threads: int
    imatrix: str = ""
    types: dict[str, str] = {}
    """Of tensors that shall have others than the level gives them."""
    metadata: dict[str, str | int | float] = {}
    keep_split: bool = False


class MeasureStep(msgspec.Struct, frozen=True, tag=True):
    """Measure how far the predictions of files are from those of the source."""

    source: str
    files: tuple[str, ...]
    load: LoadParams
    text: str
    n_chunks: int = 8
    """Of 512 tokens, half of which are scored."""


class QuantizeTask(msgspec.Struct, frozen=True, tag=True):
    """One step, for one child process."""

    step: DryStep | ImatrixStep | ProbeStep | WriteStep | MeasureStep


class TargetTypes(msgspec.Struct, frozen=True, tag=True):
    """For each level: the type of each tensor, as `GgmlType` names it; '' for the one that it has."""

    types: list[dict[str, str]]


class TensorOptions(msgspec.Struct, frozen=True, tag=True):
    """Of each tensor that may be quantized: what the types cost."""

    options: dict[str, list[TensorOption]]


class MeasuredLosses(msgspec.Struct, frozen=True, tag=True):
    """The mean divergence of each file, in nats."""

    losses: tuple[float, ...]
    n_tokens: int


class Done(msgspec.Struct, frozen=True, tag=True):
    """A file was written."""


StepAnswer = BenchProgress | BenchFailure | TargetTypes | TensorOptions | MeasuredLosses | Done
