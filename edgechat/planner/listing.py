"""The models that are on this machine as they are listed: what each is, whether it fits, when it was used."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from edgechat.device.memory import read_memory
from edgechat.models.local.inventory import LocalModel, inventory
from edgechat.models.local.usage import ModelUse, uses
from edgechat.planner.header_summary import HeaderSummary, glances


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
