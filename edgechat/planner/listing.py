"""Model list: the models on this machine, with cached summaries of their headers.

Reading a header takes a few milliseconds, mostly because of its vocabulary, whereas a summary is only about a
hundred bytes long. The memory that a load needs is estimated by formula, without a dry run, and only for the
CPU: GPUs are ignored. If the cache is damaged, all headers are read again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from edgechat import __version__
from edgechat.base import paths
from edgechat.base.errors import FolderError, ModelFileError, ModelNotFound
from edgechat.device.memory import read_memory
from edgechat.device.mlx import missing_vision
from edgechat.models.adapters.local import states_adapter
from edgechat.models.formats.header import Modality, ModelHeader, ModelKind
from edgechat.models.local.inventory import Inventory, LocalModel, inventory, models_nearby
from edgechat.models.local.locations import Place
from edgechat.models.local.resolve import find_models
from edgechat.models.local.upkeep import ModelUse, uses

if TYPE_CHECKING:
    from edgechat.native.params import CacheType

_FILE = "glances.bin"
_FORMAT = 7
MAX_MODELS = 2048
_MAX_FILE_BYTES = 8 << 20
_SPARE = 0.1
"""Same as `budget.SPARE`, which takes too long to import here."""


class HeaderSummary(msgspec.Struct, frozen=True, array_like=True):
    """The cached summary of a model's header."""

    architecture: str = ""
    name: str = ""
    quant: str | None = None
    n_params: int = 0
    context: int = 0
    """The context it was trained with, in tokens."""
    needs: tuple[tuple[int, int], ...] = ()
    """Pairs of a context and the bytes of RAM that a load with it needs, longest context first."""
    kind: ModelKind = "chat"
    damage: str = ""
    """Why the model cannot be loaded."""
    modalities: tuple[Modality, ...] = ()
    """Kinds of input that its projector adds to text."""
    no_vision: str = ""
    """Why its projector cannot be used, as a sentence."""
    mtp: bool = False
    """Whether it has drafting layers (MTP), in the same file or in a separate one."""

    can_import: bool = False
    """Whether `edgechat import` can convert it into a model that can be loaded."""

    def fits(self, available: int) -> int:
        """Return the longest context, in tokens, that fits in `available` bytes of RAM; 0 if none does.

        As in the planner, some memory is left for other programs unless no context would fit otherwise.
        """
        for context, needed in self.needs:
            if needed <= available * (1 - _SPARE):
                return context
        return self.needs[-1][0] if self.needs and self.needs[-1][1] <= available else 0


class _CachedSummary(msgspec.Struct, frozen=True, array_like=True):
    stamp: tuple[int, ...]
    """The sizes and timestamps of all the model's files; for MLX, also whether vision is available."""
    glance: HeaderSummary


class _SummaryFile(msgspec.Struct, frozen=True, array_like=True):
    format: int
    version: str
    """The edgechat version that wrote the file; formulas may change between versions."""
    models: dict[str, _CachedSummary]
    """Summaries, keyed by path."""


def glances(
    models: Sequence[LocalModel], tell: Callable[[str], None] = lambda _name: None
) -> list[HeaderSummary]:
    """Return a summary of each model. `tell` is called with a model's name before its header is read."""
    before = _read()
    after: dict[str, _CachedSummary] = {}
    for model in models:
        stamp = tuple(n for file in model.found.all_files for n in (file.size, file.changed))
        if model.found.format == "mlx":
            stamp = (*stamp, int(not missing_vision()))
        cached = before.get(str(model.path))
        if cached is None or cached.stamp != stamp:
            tell(model.name)
            cached = _CachedSummary(stamp, _summarize(model))
        after[str(model.path)] = cached
    sound = {path: cached for path, cached in after.items() if not cached.glance.damage}
    if any(before.get(path) != cached for path, cached in sound.items()):
        _write({path: cached for path, cached in before.items() if path not in after} | sound)
    return [after[str(model.path)].glance for model in models]


def _summarize(model: LocalModel) -> HeaderSummary:
    from edgechat.models.formats.importable import VisionInside
    from edgechat.models.formats.mlx.contents import read_model
    from edgechat.models.formats.mtp import can_draft
    from edgechat.planner.companions import header_beside

    try:
        header = read_model(model.path)
        file = model.found.projector
        projector, no_vision = header_beside(header, file.path if file is not None else None)
        return HeaderSummary(
            architecture=header.architecture,
            name=header.name or "",
            quant=header.quant,
            n_params=header.n_params,
            context=header.number("context_length", 0),
            needs=tuple(_needs(header)),
            kind=header.kind,
            modalities=projector.modalities if projector is not None else (),
            no_vision=no_vision,
            mtp=can_draft(header) or model.found.head is not None,
        )
    except VisionInside as error:
        return HeaderSummary(damage=f"{error.message} {error.hint}", can_import=True)
    except ModelFileError as error:
        return HeaderSummary(damage=error.message)


def _needs(header: ModelHeader) -> list[tuple[int, int]]:
    """Return the contexts that the planner tries, each with the minimum memory that a load needs."""
    from edgechat.device.memory import Memory
    from edgechat.planner.estimate.budget import Budget
    from edgechat.planner.estimate.footprint import may_quantize
    from edgechat.planner.estimate.rates import rate_of_processor
    from edgechat.planner.estimate.shape import shape_of
    from edgechat.planner.placement.model_on_machine import ModelOnMachine
    from edgechat.planner.placement.plan_model import CONTEXTS

    trained = header.context_length
    budget, speed = Budget(Memory(0, 0)), rate_of_processor(None)
    model = ModelOnMachine("", header, shape_of(header), budget, {None: speed})
    kind: CacheType = "q8_0" if may_quantize(header) else "f16"
    contexts = [context for context in CONTEXTS if not trained or context <= trained] or [trained]
    return [(context, model.load(context, kind).total) for context in contexts]


def _read() -> dict[str, _CachedSummary]:
    try:
        data = paths.read_bytes(paths.cache_dir() / _FILE, _MAX_FILE_BYTES)
        content = msgspec.msgpack.decode(data, type=_SummaryFile)
    except (OSError, FolderError, msgspec.MsgspecError, RecursionError, ValueError):
        return {}
    return content.models if (content.format, content.version) == (_FORMAT, __version__) else {}


def _write(models: dict[str, _CachedSummary]) -> None:
    """Replace the cache file, keeping only the last `MAX_MODELS` models."""
    newest = dict(list(models.items())[-MAX_MODELS:])
    with contextlib.suppress(OSError, FolderError):
        data = msgspec.msgpack.encode(_SummaryFile(_FORMAT, __version__, newest))
        paths.replace(paths.cache_dir() / _FILE, data)


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model in the list, with the details that are shown."""

    model: LocalModel
    glance: HeaderSummary
    use: ModelUse | None
    available: int
    """Free RAM in bytes."""

    @property
    def quant(self) -> str | None:
        """The quantization in the file's name, or else in its header."""
        return self.model.quant or self.glance.quant

    @property
    def fits(self) -> int:
        """The longest context that would fit right now without a GPU; 0 if none does."""
        return self.glance.fits(self.available)


def rows(
    tell: Callable[[str], None] = lambda _name: None,
    *,
    current: str | None = None,
    known: Inventory | None = None,
) -> list[ModelRow]:
    """Return the models on this machine, most recently used first. tell: see `glances`.

    current: name or path of a model to include even if it is not in one of the usual locations. known: the
    models in those locations, if they have already been listed.
    """
    models = list((known or inventory()).models)
    with contextlib.suppress(ModelFileError, ModelNotFound):  # the model may have been deleted
        elsewhere = find_models(current) if current and os.path.exists(current) else []
        models += [model for model in elsewhere if model.place is Place.ELSEWHERE]
    return _listed(models, tell)


def rows_nearby(listed: Sequence[ModelRow]) -> list[ModelRow]:
    """Return the models in the downloads and working folders that are not listed yet."""
    return _listed(models_nearby(row.model.path for row in listed), lambda _name: None)


def _listed(models: Sequence[LocalModel], tell: Callable[[str], None]) -> list[ModelRow]:
    summaries = glances(models, tell)
    used = uses()
    available = read_memory().available
    listed = [
        ModelRow(model, glance, used.get(os.path.realpath(model.path)) if used else None, available)
        for model, glance in zip(models, summaries, strict=True)
        if not (glance.damage and states_adapter(model.path))
    ]
    return sorted(listed, key=lambda row: (-(row.use.when if row.use else 0), row.model.name.casefold()))
