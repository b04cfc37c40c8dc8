"""Child process that runs one step of quantization, in native code that can take hours and may be killed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np

from edgechat.base.errors import BadRequest
from edgechat.base.text import one_line, rough_seconds
from edgechat.bench.divergence import Floats, mean_divergence
from edgechat.bench.process import Tell, answer
from edgechat.bench.quality_files import read_text, shipped_text
from edgechat.models.formats.gguf import read_model
from edgechat.models.formats.quants import GgmlType
from edgechat.native import logs
from edgechat.native.quantization import ActivationSums, QuantizeParams, TextReader, quantize, target_types
from edgechat.quantize.imatrix_file import ImportanceMatrix, read_imatrix, write_imatrix
from edgechat.quantize.sensitivity import Probe, SourceWeights, WeightAddresses
from edgechat.quantize.steps import (
    Done,
    DryStep,
    ImatrixStep,
    MeasuredLosses,
    MeasureStep,
    ProbeStep,
    QuantizeTask,
    TargetTypes,
    TensorOptions,
    WriteStep,
)

CHUNK = 512
"""Tokens per chunk, as in llama-imatrix."""
_LEAST_CHUNKS = 2
_IMATRIX_CHUNKS = 40
_PROBE = 256
"""Tokens per chunk when probing groups of tensors for their sensitivity."""


class Pace:
    """Reports a step's progress and the estimated time left."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._what, self._begun = "", 0.0

    def __call__(self, what: str, share: float) -> None:
        """Report that the fraction `share` of `what` is done."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._begun = what, now
        left = f", {rough_seconds((now - self._begun) * (1 - share) / share)} left" if share > 0 else ""
        self._tell(f"{what}: {100 * share:.0f}%{left}")


def dry_run(step: DryStep) -> TargetTypes:
    """Ask llama.cpp which types it would choose at each level."""
    importance: dict[str, Floats] | None = {} if step.has_importance else None
    plans = (
        target_types(Path(step.source), QuantizeParams(file_type=number, importance=importance))
        for number in step.file_types
    )
    return TargetTypes([{name: kind.upper() for name, kind in types.items()} for types in plans])


def compute_imatrix(step: ImatrixStep, pace: Pace) -> Done:
    """Compute an importance matrix from the user's text, or from every other chunk of the shipped text."""
    sums = ActivationSums()
    with TextReader(Path(step.source), step.load, on_operation=sums.on_operation) as reader:
        chunks = _chunks(reader, step.text, CHUNK)
        if not step.text:
            chunks = chunks[::2][:_IMATRIX_CHUNKS]
        for number, chunk in enumerate(chunks):
            pace("computing the importance matrix", number / len(chunks))
            reader.logits(chunk, len(chunk))
            if sums.failure is not None:
                raise sums.failure
    squares = {name: one.astype(np.float32) for name, one in sums.squares.items()}
    counts = {name: one.astype(np.float32) for name, one in sums.counts.items()}
    matrix = ImportanceMatrix(squares, counts, _text(step.text).name, len(chunks), CHUNK)
    write_imatrix(matrix, Path(step.target))
    return Done()


def probe(step: ProbeStep, pace: Pace) -> TensorOptions:
    """Measure the loss that storing each tensor in each possible type would cause."""
    weights = SourceWeights(map(Path, step.sources))
    addresses = WeightAddresses(step.tensors)
    importance = read_imatrix(Path(step.imatrix)).importance()
    load = msgspec.structs.replace(
        step.load, context=_PROBE, n_batch=_PROBE, n_ubatch=_PROBE, n_outputs_max=_PROBE
    )
    with TextReader(
        Path(step.sources[0]), load, writable=True, on_operation=addresses.on_operation
    ) as reader:
        chunks = [chunk[:_PROBE] for chunk in _evenly(_chunks(reader, step.text, CHUNK)[::2], step.n_chunks)]
        measuring = Probe(reader, addresses, weights, importance, chunks, threads=load.threads)
        return TensorOptions(measuring.options(step.tensors, step.n_groups, pace))


def write(step: WriteStep, pace: Pace) -> Done:
    """Write a model file."""
    sizes = {tensor.name: tensor.n_elements for tensor in read_model(Path(step.source)).tensors}
    matrix = read_imatrix(Path(step.imatrix)) if step.imatrix else None
    params = QuantizeParams(
        file_type=step.file_type,
        threads=step.threads,
        types={name: GgmlType[kind] for name, kind in step.types.items()},
        importance=matrix.importance() if matrix else None,
        metadata=step.metadata | (_imatrix_metadata(matrix, step.imatrix) if matrix else {}),
        keep_split=step.keep_split,
    )
    total, done = max(1, sum(sizes.values())), 0

    def begin(name: str) -> None:
        nonlocal done
        pace("writing", done / total)
        done += sizes.get(name, 0)

    quantize(Path(step.source), Path(step.target), params, begin)
    return Done()


def _imatrix_metadata(matrix: ImportanceMatrix, path: str) -> dict[str, str | int]:
    """Return the metadata that llama-quantize would write about the matrix."""
    return {
        "quantize.imatrix.file": Path(path).name,
        "quantize.imatrix.dataset": matrix.dataset,
        "quantize.imatrix.entries_count": len(matrix.squares),
        "quantize.imatrix.chunks_count": matrix.n_chunks,
    }


def measure(step: MeasureStep, pace: Pace) -> MeasuredLosses:
    """Measure each file's loss relative to the source, on chunks not used for any importance matrix."""
    totals = [0.0] * len(step.files)
    with ExitStack() as stack:
        base = stack.enter_context(TextReader(Path(step.source), step.load))
        readers = [stack.enter_context(TextReader(Path(file), step.load)) for file in step.files]
        chunks = _evenly(_chunks(base, step.text, CHUNK)[1::2], step.n_chunks)
        for number, chunk in enumerate(chunks):
            pace("measuring the loss", number / len(chunks))
            expected = base.logits(chunk, CHUNK // 2)
            for index, reader in enumerate(readers):
                totals[index] += mean_divergence(expected, reader.logits(chunk, CHUNK // 2))
    return MeasuredLosses(tuple(total / len(chunks) for total in totals))


def _chunks(reader: TextReader, path: str, size: int) -> list[list[int]]:
    chunks = reader.chunks(read_text(_text(path)), size)
    if len(chunks) < _LEAST_CHUNKS:
        raise BadRequest(
            f"{one_line(_text(path).name, 120)} is too short: it has fewer than {_LEAST_CHUNKS * size} "
            "tokens.",
            hint="Use a longer text of the kind that the model is for, or the one that comes with edgechat.",
        )
    return chunks


def _evenly(chunks: Sequence[list[int]], n: int) -> Sequence[list[int]]:
    return chunks[:: max(1, len(chunks) // n)][:n]


def take(task: QuantizeTask, tell: Tell) -> msgspec.Struct:
    """Run a step. Raises EdgechatError."""
    logs.install()
    pace = Pace(tell)
    match task.step:
        case DryStep() as step:
            return dry_run(step)
        case ImatrixStep() as step:
            return compute_imatrix(step, pace)
        case ProbeStep() as step:
            return probe(step, pace)
        case WriteStep() as step:
            return write(step, pace)
        case MeasureStep() as step:
            return measure(step, pace)


def _text(path: str) -> Path:
    """Return the given path, or the path of the text shipped with edgechat if it is empty."""
    return Path(path) if path else shipped_text()


def main() -> None:
    """Run the QuantizeTask sent by the parent process."""
    answer(QuantizeTask, take)
