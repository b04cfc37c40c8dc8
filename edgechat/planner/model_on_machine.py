"""One model on one machine: its loads, and what was learnt of their like."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from edgechat.device.profile import DeviceProfile
from edgechat.models.formats.header import ModelHeader
from edgechat.native.params import CacheType
from edgechat.planner.drafting import NOBODY, DraftCosts, cache_type_of
from edgechat.planner.estimate import calibration
from edgechat.planner.estimate.calibration import Calibration, RunConditions
from edgechat.planner.estimate.footprint import footprint_of
from edgechat.planner.estimate.memory import CELLS, program_bytes
from edgechat.planner.estimate.shape import shape_of
from edgechat.planner.estimate.speed import Correction, DeviceRate, rate_of_processor
from edgechat.planner.placement.budget import SPARE, Budget
from edgechat.planner.placement.load_configs import LoadConfig, LoadConfigs, Measure

_LONGEST = 32768


@dataclass(frozen=True)
class ModelOnMachine:
    """One model on one machine, with what was learnt of its like."""

    name: str
    loader: LoadConfigs
    learned: Calibration
    where: RunConditions
    """With the backend of the processor alone."""

    @property
    def header(self) -> ModelHeader:
        """The model's."""
        return self.loader.header

    @property
    def budget(self) -> Budget:
        """What there is."""
        return self.loader.budget

    def with_draft(self, draft: ModelOnMachine) -> ModelOnMachine:
        """Return the same model with one that drafts for it, which it makes room for."""
        both = f"{self.name} with {draft.name} to draft for it"
        return replace(self, name=both, loader=replace(self.loader, draft=draft.as_draft))

    @property
    def as_draft(self) -> LoadConfigs:
        """The loads of this model in the process of another one."""
        return replace(self.loader, beyond=-program_bytes(0, self.header.format))

    def beside(self, load: LoadConfig, draft: ModelOnMachine) -> LoadConfig | None:
        """Return a load with a model that drafts for it in what it leaves; None where that is too little."""
        left = replace(draft.as_draft, budget=self.budget.less(dict(load.needs)))
        both = load.beside(left.load(load.context, cache_type_of(draft.header)))
        spare = SPARE if self.fits(load, SPARE) else 0.0
        return both if self.fits(both, spare) else None

    def correction(self, load: LoadConfig) -> Correction:
        """Return what earlier loads tell of the speed of this one."""
        return self.learned.correction(self.where_of(load))

    def where_of(self, load: LoadConfig) -> RunConditions:
        """Return what the speed of a load depends on."""
        kinds = {name.rstrip("0123456789") for name in load.layout.devices}
        if not kinds or load.layout.n < len(self.loader.shape.parts) or load.layout.experts_in_ram:
            kinds.add("CPU")
        return msgspec.structs.replace(self.where, backend="+".join(sorted(kinds)))

    def fits(self, load: LoadConfig, spare: float = 0.0) -> bool:
        """Say whether a load stays inside its budget, with a share of the RAM left over."""
        return self.budget.fits(dict(load.needs), spare=spare)

    def seconds(self, load: LoadConfig) -> float:
        """Return the seconds of a token."""
        return self.correction(load).decode * load.forecast.decoding(0)

    def longest(self, cache_type: CacheType) -> int:
        """Return the longest context in tokens that fits at all; 0 if none does."""
        few, many = 0, (self.header.context_length or _LONGEST) // CELLS + 1
        while many - few > 1:
            middle = (few + many) // 2
            if self.fits(self.loader.load(middle * CELLS, cache_type)):
                few = middle
            else:
                many = middle
        return few * CELLS


def model_on_machine(
    name: str,
    header: ModelHeader,
    profile: DeviceProfile,
    measure: Measure | None = None,
    history: Calibration | None = None,
    *,
    threads: int,
    drafting: DraftCosts = NOBODY,
) -> ModelOnMachine:
    """Return a model on a machine; without `measure` all sizes are estimated."""
    history = history or Calibration()
    processor = rate_of_processor(profile.speed, threads)
    budget = Budget.of(profile, header.format)
    rate = footprint_of(header.format).rate
    rates: dict[str | None, DeviceRate] = {None: rate(None, processor)}
    rates |= {card.name: rate(card.about, processor) for card in budget.cards}
    rpc = profile.rpc if header.format == "gguf" else ()
    loader = LoadConfigs(header, shape_of(header), budget, rates, measure, rpc=rpc, drafting=drafting)
    where = RunConditions(
        machine=f"{profile.cpu.name}, {threads} threads",
        build=calibration.build(header.format),
        backend="CPU",
        architecture=header.architecture,
        quant=loader.shape.main_type.name,
        model=name,
    )
    loader = replace(loader, beyond=history.beyond(where))
    return ModelOnMachine(name, loader, history, where)
