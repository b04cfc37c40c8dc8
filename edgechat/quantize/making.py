"""Creates a quantized model file, running each step in a child process.

Files are written to a folder that is not searched for models, and are moved into place once they are complete
and on disk. If the process is interrupted, no model appears, and the next import or quantization removes the
leftovers.
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock

from edgechat import __version__
from edgechat.base.errors import NotQuantized
from edgechat.base.text import figure, mebibytes, one_line
from edgechat.bench.process import Tell, ask
from edgechat.device.cpu import read_cpu
from edgechat.models.choices import without_label
from edgechat.models.formats.gguf import read_model
from edgechat.models.formats.header import ModelHeader
from edgechat.models.formats.quants import GgmlType
from edgechat.models.local import locations
from edgechat.models.local.importing import (
    DRAFT,
    DRAFT_LOCK,
    RESERVE,
    SHARD_NUMBER,
    check_name,
    name_in_use,
    remove_old_drafts,
    rename_new,
)
from edgechat.models.local.inventory import LocalModel
from edgechat.models.local.locations import Place
from edgechat.models.local.resolve import find_models
from edgechat.native.params import LoadParams
from edgechat.planner.prepare import prepare
from edgechat.planner.request import PlanRequest
from edgechat.quantize.mixtures import LEVELS, Options, allocate, least_bytes, types_for
from edgechat.quantize.steps import (
    DryStep,
    ImatrixStep,
    MeasuredLosses,
    MeasureStep,
    ProbeStep,
    QuantizeTask,
    StepAnswer,
    TargetTypes,
    TensorOptions,
    WriteStep,
)

_UNQUANTIZED = (GgmlType.F32, GgmlType.F16, GgmlType.BF16, GgmlType.I32)
PLAIN_LEVELS = ("Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "Q8_0")
"""Standard levels that a mixture is compared with, smallest first."""
_READ = 512
"""Number of tokens per call when running a model over text."""
_METADATA = 1 << 16
"""Number of bytes to reserve for added metadata and padding."""
_TRIES = 4
_CLOSE = 0.9
"""A result is close enough if its loss is at least this fraction of the requested loss."""
_HINT = "Check `edgechat doctor` and the free memory, and try a smaller model."


@dataclass(frozen=True, kw_only=True)
class QuantizeRequest:
    """A request to quantize to a given level, size or loss, or just to compute an importance matrix."""

    model: str
    level: str | None = None
    n_bytes: int | None = None
    """Maximum size of the file, in bytes."""
    loss: float | None = None
    """Maximum mean divergence, in nats."""
    imatrix: str | None = None
    """Path of a text file, or of a matrix in GGUF format; '' means the text shipped with edgechat.

    If None, quantizing to a level uses no matrix.
    """
    save_imatrix: Path | None = None
    name: str | None = None
    keep_split: bool = False
    threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class QuantizedModel:
    """A newly created model."""

    path: Path
    name: str
    level: str
    """The requested quantization level, or the one closest in size."""
    size: int
    source_size: int
    types: Mapping[str, str]
    """The type of each quantized tensor, keyed by name."""
    sizes: Mapping[str, int]
    loss: float | None = None
    """The measured loss, or None if it was not measured."""
    rival: tuple[str, int, float] | None = None
    """The standard level that the mixture was compared with, as (level, size, loss)."""


class Source:
    """The model to quantize."""

    def __init__(self, name: str) -> None:
        """Find the model. Raises ModelNotFound, ModelFileError or NotQuantized."""
        if any(Path(name).glob("*.safetensors")):
            raise _of_safetensors(name, name)
        model = find_models(name)[0]
        if model.found.format == "mlx":
            raise _of_safetensors(name, str(model.path))
        self.model: LocalModel = model
        self.paths = tuple(part.path for part in model.found.files)
        self.header: ModelHeader = read_model(model.path)
        name = model.name if model.place is Place.OLLAMA else self.path.name
        name = without_label(SHARD_NUMBER.sub("", name).removesuffix(".gguf"))
        self.base_name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._ ") or "model"
        """The model's name, without its quantization."""

    @property
    def path(self) -> Path:
        """Path to the file, or to its first shard."""
        return self.paths[0]

    @property
    def is_quantized(self) -> bool:
        """Whether any of the weights are already quantized."""
        return any(tensor.type not in _UNQUANTIZED for tensor in self.header.tensors)

    def file_size(self, types: Mapping[str, str]) -> int:
        """Return the approximate size, in bytes, of a file that uses these types."""
        overhead = self.header.file_size - self.header.weights_bytes + _METADATA
        return overhead + sum(sizes_of(self.header, types).values())


def sizes_of(header: ModelHeader, types: Mapping[str, str]) -> dict[str, int]:
    """Return the size, in bytes, that each tensor would have in these types."""
    return {
        tensor.name: GgmlType[kind].row_bytes(tensor.n_elements)
        if (kind := types.get(tensor.name, ""))
        else tensor.n_bytes
        for tensor in header.tensors
    }


def level_types(source: Source, levels: Iterable[str], *, has_importance: bool) -> list[dict[str, str]]:
    """Return the types that llama.cpp would choose at each level. Raises EdgechatError."""
    numbers = tuple(LEVELS[level] for level in levels)
    answer: TargetTypes = take_step(DryStep(str(source.path), numbers, has_importance), lambda _text: None)
    return answer.types


def make(source: Source, request: QuantizeRequest, tell: Tell) -> QuantizedModel | None:
    """Create the model file, or just the matrix.

    Raises EdgechatError on failure, leaving no file behind.
    """
    folder = locations.own_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_old_drafts(folder)
        with _draft_folder(folder) as draft:
            return _Maker(source, request, draft, folder, tell).make()
    except OSError as error:
        raise NotQuantized(
            f"The file cannot be written to {folder}: {error.strerror or error}.",
            hint="Check the permissions of the folder and the free disk space.",
        ) from error


@contextlib.contextmanager
def _draft_folder(folder: Path) -> Iterator[Path]:
    draft = Path(tempfile.mkdtemp(dir=folder, prefix=".", suffix=DRAFT))
    try:
        with FileLock(draft / DRAFT_LOCK):
            yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


class _Maker:
    def __init__(
        self, source: Source, request: QuantizeRequest, draft: Path, folder: Path, tell: Tell
    ) -> None:
        self._source, self._request, self._draft, self._folder = source, request, draft, folder
        self._tell = tell
        self._threads = request.threads or len(read_cpu().allowed)
        self._text = ""
        self._imatrix = ""
        self._metadata: dict[str, str | int | float] = {
            "general.quantized_by": f"edgechat {__version__}",
            "edgechat.quantize.sensitivity": source.path.name,
        }

    @cached_property
    def _load(self) -> LoadParams:
        return reading_params(self._source.path, self._request.threads)

    def make(self) -> QuantizedModel | None:
        request = self._request
        if request.name is not None:
            self._check_free(self._folder / _file_name(request.name))
        if request.level is not None:
            return self._at_level(request.level)
        if self._source.is_quantized and (request.n_bytes is not None or request.loss is not None):
            self._dequantize()
        if request.n_bytes is None and request.loss is None:
            self._find_imatrix()
            return None
        return self._searched()

    def _at_level(self, level: str) -> QuantizedModel:
        has_importance = self._request.imatrix is not None
        (types,) = level_types(self._source, [level], has_importance=has_importance)
        self._check_free(self._folder / _file_name(self._request.name or self._default_name(level)))
        self._check_disk(self._source.file_size(types))
        self._find_imatrix()
        file = self._write("model", level, {}, keep_split=self._request.keep_split)
        return self._finish(file, level, types)

    def _dequantize(self) -> None:
        """Convert a quantized source to 16 bits, because the search has to start from floats."""
        (types,) = level_types(self._source, ["F16"], has_importance=False)
        self._check_disk(self._source.file_size(types))
        (file,) = self._write("source", "F16", {})
        self._source = copy.copy(self._source)  # so that its name does not change
        self._source.paths, self._source.header = (file,), read_model(file)

    def _find_imatrix(self) -> None:
        """Read or compute the importance matrix, and save it if requested."""
        request = self._request
        given = request.imatrix
        if given is None and request.level is not None:
            return
        if given and is_matrix(given):
            self._imatrix = given
            return
        self._text = given or ""
        self._imatrix = str(self._draft / "imatrix.gguf")
        step = ImatrixStep(str(self._source.path), self._load, self._text, self._imatrix)
        take_step(step, self._tell)
        if request.save_imatrix is not None:
            _save_matrix(Path(self._imatrix), request.save_imatrix)

    def _searched(self) -> QuantizedModel:
        levels = level_types(self._source, PLAIN_LEVELS, has_importance=True)
        names = tuple(
            tensor.name
            for tensor in self._source.header.tensors
            if any(types.get(tensor.name) for types in levels)
        )
        n_bytes = self._request.n_bytes
        if n_bytes is not None:
            self._check_size(n_bytes, names)
        self._find_imatrix()
        paths = tuple(map(str, self._source.paths))
        step = ProbeStep(paths, self._load, self._text, self._imatrix, names)
        answer: TensorOptions = take_step(step, self._tell)
        rivals = dict(zip(PLAIN_LEVELS, levels, strict=True))
        if n_bytes is not None:
            return self._of_size(n_bytes, answer.options, rivals)
        assert self._request.loss is not None
        return self._of_loss(self._request.loss, answer.options, rivals)

    def _check_size(self, n_bytes: int, names: Collection[str]) -> None:
        """Raise NotQuantized if the file would be too large even with the smallest types."""
        tensors = [tensor for tensor in self._source.header.tensors if tensor.name in names]
        smallest = {
            tensor.name: min(types_for(tensor), key=lambda kind: kind.row_bytes(tensor.n_elements)).name
            for tensor in tensors
        }
        least = self._source.file_size(smallest)
        if n_bytes < least:
            raise NotQuantized(
                f"{self._source.base_name} cannot be made as small as {mebibytes(n_bytes)}: its smallest "
                f"mixture takes {mebibytes(least)}.",
                hint=f"Allow more: --fit {-(-least >> 20)}MiB",
            )

    def _of_size(
        self, n_bytes: int, options: Options, rivals: Mapping[str, Mapping[str, str]]
    ) -> QuantizedModel:
        n_bytes = min(n_bytes, self._source.file_size(rivals[PLAIN_LEVELS[-1]]))
        types = chosen_types(allocate(options, n_bytes - self._size_of(options, {})))
        self._check_disk(2 * n_bytes)
        mixed = self._write("mixed", self._nearest(types, rivals), types)
        rival = self._nearest(types, rivals)
        # There is nothing to compare with: the mixture is smaller than every level, or identical to one.
        if self._source.file_size(rivals[rival]) > n_bytes or types.items() <= rivals[rival].items():
            (loss,) = self._measure(mixed)
            return self._finish(mixed, rival, types, loss)
        plain = self._write("plain", rival, {})
        loss, plain_loss = self._measure(mixed, plain)
        compared = (rival, plain[0].stat().st_size, plain_loss)
        if plain_loss < loss:
            return self._finish(plain, rival, rivals[rival], plain_loss, compared)
        return self._finish(mixed, rival, types, loss, compared)

    def _of_loss(
        self, loss: float, options: Options, rivals: Mapping[str, Mapping[str, str]]
    ) -> QuantizedModel:
        """Create and measure files until one has a loss close to `loss`, but not above it.

        The prediction is corrected after each measurement.
        """
        best: tuple[list[Path], dict[str, str], float] | None = None
        correction, least = 1.0, float("inf")
        for number in range(_TRIES):
            chosen = _for_loss(options, loss / correction)
            types = chosen_types(chosen)
            self._check_disk(self._source.file_size(types))
            files = self._write(f"try-{number}", self._nearest(types, rivals), types)
            (measured,) = self._measure(files)
            least = min(least, measured)
            size = files[0].stat().st_size
            if measured <= loss and (best is None or size < best[0][0].stat().st_size):
                best = files, types, measured
            else:
                files[0].unlink()
            if _CLOSE * loss <= measured <= loss:
                break
            predicted = sum(option.loss for option in chosen.values())
            correction = max(measured, 1e-9) / max(predicted, 1e-9)
        if best is None:
            raise NotQuantized(
                f"No mixture of {self._source.base_name} loses at most {figure(loss)} nats; "
                f"the best one found loses {figure(least)}.",
                hint=f"Allow more: --loss {figure(1.1 * least)}",
            )
        files, types, measured = best
        return self._finish(files, self._nearest(types, rivals), types, measured)

    def _size_of(self, options: Options, types: Mapping[str, str]) -> int:
        """Return the size of a file in bytes, excluding the tensors in `options`."""
        sizes = sizes_of(self._source.header, types)
        return self._source.file_size(types) - sum(sizes[name] for name in options)

    def _nearest(self, types: Mapping[str, str], rivals: Mapping[str, Mapping[str, str]]) -> str:
        """Return the largest level that is no larger than this mixture, or else the smallest level."""
        size = self._source.file_size(types)
        smaller = [level for level, plain in rivals.items() if self._source.file_size(plain) <= size]
        return smaller[-1] if smaller else next(iter(rivals))

    def _write(
        self, name: str, level: str, types: Mapping[str, str], *, keep_split: bool = False
    ) -> list[Path]:
        """Write a file and return its path, or the paths of its shards."""
        target = self._draft / (name if keep_split else f"{name}.gguf")
        step = WriteStep(
            source=str(self._source.path),
            target=str(target),
            file_type=LEVELS[level],
            threads=self._threads,
            imatrix=self._imatrix,
            types=dict(types),
            metadata=self._metadata | ({"edgechat.quantize.types": "mixed"} if types else {}),
            keep_split=keep_split,
        )
        take_step(step, self._tell)
        return sorted(self._draft.glob(f"{name}-*.gguf")) if keep_split else [target]

    def _measure(self, *files: list[Path]) -> tuple[float, ...]:
        paths = tuple(str(file[0]) for file in files)
        step = MeasureStep(str(self._source.path), paths, self._load, self._text)
        answer: MeasuredLosses = take_step(step, self._tell)
        return answer.losses

    def _finish(
        self,
        files: list[Path],
        level: str,
        types: Mapping[str, str],
        loss: float | None = None,
        rival: tuple[str, int, float] | None = None,
    ) -> QuantizedModel:
        """Check the files and rename them.

        The first file is renamed last, since the model appears once that file has its final name.
        """
        self._tell("saving")
        header = read_model(files[0])
        if {tensor.name for tensor in header.tensors} != {t.name for t in self._source.header.tensors}:
            raise NotQuantized("llama.cpp wrote an incomplete file.", hint="Try again.")
        name = self._request.name or self._default_name(level)
        targets = [self._folder / _file_name(name, file.name) for file in files]
        for file, target in reversed(list(zip(files, targets, strict=True))):
            self._check_free(target)
            with file.open("rb+") as written:
                os.fsync(written.fileno())
        placed: list[Path] = []
        try:
            for file, target in reversed(list(zip(files, targets, strict=True))):
                rename_new(file, target)
                placed.append(target)
        except BaseException as error:
            for target in placed:
                target.unlink()
            if isinstance(error, FileExistsError):
                raise name_in_use(Path(error.filename2 or error.filename)) from error
            raise
        return QuantizedModel(
            path=targets[0],
            name=SHARD_NUMBER.sub("", targets[0].name).removesuffix(".gguf"),
            level=level,
            size=header.file_size,
            source_size=self._source.header.file_size,
            types={tensor.name: tensor.type.name for tensor in header.tensors if types.get(tensor.name)},
            sizes={tensor.name: tensor.n_bytes for tensor in header.tensors},
            loss=loss,
            rival=rival,
        )

    def _default_name(self, level: str) -> str:
        """Return a name for the new model, unused in the case of a mixture, which takes minutes to create."""
        if self._request.level is not None:
            return f"{self._source.base_name}-{level}"
        names = (
            f"{self._source.base_name}-fit{number}-{level}" for number in ("", *map(str, range(2, 1000)))
        )
        return next(name for name in names if not os.path.lexists(self._folder / _file_name(name)))

    def _check_free(self, target: Path) -> None:
        if os.path.lexists(target):
            raise name_in_use(target)

    def _check_disk(self, n_bytes: int) -> None:
        free = shutil.disk_usage(self._draft).free
        if n_bytes + RESERVE > free:
            raise NotQuantized(
                f"This needs {mebibytes(n_bytes)} on the disk that contains {self._folder}, but only "
                f"{mebibytes(free)} is free.",
                hint="Free some space, or set EDGECHAT_HOME to a folder on another disk.",
            )


def _of_safetensors(name: str, folder: str) -> NotQuantized:
    return NotQuantized(
        f"{one_line(name)} is a folder of safetensors, but edgechat quantizes only GGUF files.",
        hint="Convert it with the program from github.com/ggml-org/llama.cpp: python convert_hf_to_gguf.py "
        f"{shlex.quote(one_line(folder, 300))} --outtype bf16",
    )


def reading_params(path: Path, threads: int | None = None) -> LoadParams:
    """Return the planner's parameters for loading a model, adapted to reading text in short chunks.

    Raises DoesNotFit.
    """
    plan = prepare(str(path), PlanRequest(context=_READ, draft="none", vision=False, threads=threads))
    return LoadParams.of(
        msgspec.structs.replace(
            plan,
            context=_READ,
            cache_type="f16",
            n_batch=_READ,
            n_ubatch=_READ,
            n_seq_max=1,
            n_outputs_max=_READ,
            n_rs_seq=0,
            mtp=False,
        )
    )


def take_step(step: Any, tell: Tell) -> Any:
    """Run a step in a child process and return its result. Raises EdgechatError."""
    return ask("quantize", QuantizeTask(step), StepAnswer, tell, _HINT)


def is_matrix(imatrix: str | None) -> bool:
    """Return whether the value of --imatrix is the path of a matrix rather than of a text file."""
    return imatrix is not None and imatrix.lower().endswith(".gguf")


def _save_matrix(matrix: Path, target: Path) -> None:
    """Copy a matrix to the path chosen by the user. Raises NotQuantized."""
    part = target.with_name(f".{target.name}{DRAFT}")
    try:
        shutil.copyfile(matrix, part)
        os.replace(part, target)
    except OSError as error:
        raise NotQuantized(
            f"The importance matrix cannot be written to {one_line(str(target), 300)}: "
            f"{error.strerror or error}.",
            hint="Check the permissions of the folder and the free disk space.",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def chosen_types(chosen: Mapping[str, Any]) -> dict[str, str]:
    """Return the type chosen for each tensor."""
    return {name: option.type for name, option in chosen.items()}


def _for_loss(options: Options, loss: float) -> dict[str, Any]:
    """Return the smallest mixture whose predicted loss is at most `loss`, found by bisecting on the size."""
    low, high = least_bytes(options), sum(max(o.n_bytes for o in choices) for choices in options.values())
    while high - low > high // 2000:
        middle = (low + high) // 2
        predicted = sum(option.loss for option in allocate(options, middle).values())
        low, high = (low, middle) if predicted <= loss else (middle, high)
    return allocate(options, high)


def _file_name(name: str, shard: str = "") -> str:
    number = SHARD_NUMBER.search(shard)
    return check_name(name.removesuffix(".gguf") + (number[0] if number else ".gguf"))
