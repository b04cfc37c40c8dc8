"""The models on this machine as they are listed, without reading a header twice: summaries are cached.

A header takes some milliseconds to read, most of them for its vocabulary; what is kept of it is a hundred
bytes. What a load would take is by the planner's formulas, on the processor alone: no process is asked, and a
GPU is not counted. Whatever is wrong with the file, headers are only read anew.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edgechat import __version__
from edgechat.base import paths
from edgechat.base.errors import FolderError, ModelFileError
from edgechat.device.memory import read_memory
from edgechat.models.formats.header import ModelHeader
from edgechat.models.local.inventory import LocalModel, inventory
from edgechat.models.local.usage import ModelUse, uses

if TYPE_CHECKING:
    from edgechat.native.params import CacheType

_FILE = "glances.bin"
_FORMAT = 2
_MOST = 2048
_MAX_BYTES = 8 << 20
_SPARE = 0.1
"""As planner.budget's, which is not imported for it: a listing has no time to."""


class HeaderSummary(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of a model's header."""

    architecture: str = ""
    name: str = ""
    quant: str | None = None
    n_params: int = 0
    context: int = 0
    """Tokens it was trained to look back on."""
    needs: tuple[tuple[int, int], ...] = ()
    """Contexts, the longest first, and the bytes of RAM that a load with them takes."""
    embeds: bool = False
    """Whether it makes embeddings instead of chatting."""
    damage: str = ""
    """Why it is no model that can be loaded."""

    def fits(self, available: int) -> int:
        """Return the longest context in tokens with which it fits into so many bytes of RAM; 0: with none.

        As the planner does, some is left to other programs, unless that leaves no context at all.
        """
        for context, needed in self.needs:
            if needed <= available * (1 - _SPARE):
                return context
        return self.needs[-1][0] if self.needs and self.needs[-1][1] <= available else 0


class _CachedSummary(msgspec.Struct, frozen=True, array_like=True):
    stamp: tuple[int, ...]
    """Sizes and times of all its files."""
    glance: HeaderSummary


class _SummaryFile(msgspec.Struct, frozen=True, array_like=True):
    format: int
    version: str
    """Of edgechat: another one's formulas may differ."""
    kept: dict[str, _CachedSummary]


def glances(
    models: Sequence[LocalModel], tell: Callable[[str], None] = lambda _name: None
) -> list[HeaderSummary]:
    """Return a glance at each model; `tell` hears the name of each whose header has to be read."""
    before = _read()
    after: dict[str, _CachedSummary] = {}
    for one in models:
        stamp = tuple(n for file in one.found.files for n in (file.size, file.changed))
        known = before.get(str(one.path))
        if known is None or known.stamp != stamp:
            tell(one.name)
            known = _CachedSummary(stamp, _look(one.path))
        after[str(one.path)] = known
    if any(before.get(path) != kept for path, kept in after.items() if not kept.glance.damage):
        _write({path: kept for path, kept in before.items() if path not in after} | after)
    return [after[str(one.path)].glance for one in models]


def _look(path: Path) -> HeaderSummary:
    from edgechat.models.formats.header_reading import read_model

    try:
        header = read_model(path)
        return HeaderSummary(
            architecture=header.architecture,
            name=header.name or "",
            quant=header.quant,
            n_params=header.n_params,
            context=header.number("context_length", 0),
            needs=tuple(_needs(header)),
            embeds=header.makes_embeddings,
        )
    except ModelFileError as error:
        return HeaderSummary(damage=error.message)


def _needs(header: ModelHeader) -> list[tuple[int, int]]:
    """Return what a load takes with each context that the planner tries, as little as it may."""
    from edgechat.device.memory import Memory
    from edgechat.planner.estimate.footprint import may_quantize
    from edgechat.planner.estimate.rates import DeviceRate, rate_of_processor
    from edgechat.planner.estimate.shape import shape_of
    from edgechat.planner.model_on_machine import ModelOnMachine
    from edgechat.planner.placement.budget import Budget
    from edgechat.planner.plan_model import CONTEXTS

    trained = header.context_length
    rates: dict[str | None, DeviceRate] = {None: rate_of_processor(None)}
    on = ModelOnMachine("", header, shape_of(header), Budget(Memory(0, 0)), rates)
    kind: CacheType = "q8_0" if may_quantize(header) else "f16"
    contexts = [one for one in CONTEXTS if not trained or one <= trained] or [trained]
    return [(context, on.load(context, kind).total) for context in contexts]


def _read() -> dict[str, _CachedSummary]:
    try:
        found = msgspec.msgpack.decode(paths.read_bytes(_path(), _MAX_BYTES), type=_SummaryFile)
    except (OSError, FolderError, msgspec.MsgspecError, RecursionError, ValueError):
        return {}
    return found.kept if (found.format, found.version) == (_FORMAT, __version__) else {}


def _write(kept: dict[str, _CachedSummary]) -> None:
    """Put the file in the place of the old one; those that were looked at last stay."""
    with contextlib.suppress(OSError, FolderError):
        sound = {path: one for path, one in kept.items() if not one.glance.damage}
        data = msgspec.msgpack.encode(_SummaryFile(_FORMAT, __version__, dict(list(sound.items())[-_MOST:])))
        paths.replace(_path(), data)


def _path() -> Path:
    return paths.cache_dir() / _FILE


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model as it is listed."""

    model: LocalModel
    glance: HeaderSummary
    use: ModelUse | None
    available: int
    """Bytes of RAM that are free."""

    @property
    def quant(self) -> str | None:
        """As its file's name says, else as the file itself does."""
        return self.model.quant or self.glance.quant

    @property
    def fits(self) -> int:
        """The longest context with which it would fit now, without a GPU; 0: with none."""
        return self.glance.fits(self.available)


def rows(tell: Callable[[str], None] = lambda _name: None) -> list[ModelRow]:
    """Return the models on this machine, those that were used last first; `tell`: see `glances`."""
    models = inventory().models
    looked = glances(models, tell)
    used = uses()
    available = read_memory().available
    found = [
        ModelRow(one, glance, used.get(os.path.realpath(one.path)) if used else None, available)
        for one, glance in zip(models, looked, strict=True)
    ]
    return sorted(found, key=lambda row: (-(row.use.when if row.use else 0), row.model.name.casefold()))
