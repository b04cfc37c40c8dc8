"""Model libraries for tests, and an app that shows a single screen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from textual.app import App
from textual.screen import Screen

from edgechat.base.errors import EdgechatError
from edgechat.device.cpu import Core, Cpu
from edgechat.device.memory import Memory
from edgechat.device.profile import DeviceProfile
from edgechat.models.catalogue import CatalogueEntry
from edgechat.models.formats.header import Modality, ModelHeader, ModelKind
from edgechat.models.hub.client import HubReach
from edgechat.models.local.files import ModelPartFile
from edgechat.models.local.inventory import LocalModel
from edgechat.models.local.locations import Place
from edgechat.models.local.stores import FoundModel
from edgechat.models.local.upkeep import ModelUse
from edgechat.planner.candidates import Variant
from edgechat.planner.estimate.calibration import Calibration, RunConditions
from edgechat.planner.estimate.speed import Prediction
from edgechat.planner.listing import HeaderSummary, ModelRow
from edgechat.planner.plan import Alternative, DeviceMemory, Divergence, LoadPlan
from edgechat.planner.ranking.ranking import RankedFile, SurveyFindings, SurveyOverview, Verdict
from edgechat.tui.models.library import ModelLibrary
from edgechat.tui.models.pulls import Pulls
from edgechat.tui.theme import TERMINAL

GIB = 1 << 30
WHERE = RunConditions(machine="m", build="b", backend="CPU", architecture="llama", quant="Q4_K_M")


def entry(name: str, quality: int | None = 4, **more: Any) -> CatalogueEntry:
    fields = {"description": f"{name}, by the tests.", "licence": "MIT", "repo": f"owner/{name}-GGUF"}
    return CatalogueEntry(
        name=name, file=f"{name}-{{quant}}.gguf", quant="Q4_K_M", quality=quality, **(fields | more)
    )


def _no_header() -> ModelHeader:
    raise AssertionError("nobody reads it")


def plan(model: str, quant: str, size: int, tps: float, first_token: float = 10.0) -> LoadPlan:
    memory = DeviceMemory(
        name="RAM", budget_bytes=16 * GIB, weights_bytes=size, cache_bytes=GIB, compute_bytes=GIB // 4
    )
    return LoadPlan(
        model_path="",
        model_name=model,
        context=8192,
        threads=2,
        quant=quant,
        memory=(memory,),
        predicted=Prediction(decode_tps=tps, prompt_tps=100, ttft_ms=1000 * first_token, basis="a guess"),
        where=WHERE,
        kl_divergence=Divergence(value=0.0282, source="a table"),
        ngrams=True,
        reasons=("The best that fits here.", "Context 8192: enough.", "About as fast as one reads."),
        alternatives=(
            Alternative(model=model, quant="Q8_0", context=0, decode_tps=0, why_not="It does not fit."),
        ),
    )


def option(
    model: str,
    quant: str = "Q4_K_M",
    size: int = 4 * GIB,
    *,
    tps: float = 20.0,
    worth: float = 1.0,
    first_token: float = 10.0,
    verdict: Verdict = Verdict.FITS,
    of: CatalogueEntry | None = None,
    path: Path | None = None,
) -> RankedFile:
    variant = Variant(model, quant, size, _no_header, path, of)
    if verdict is Verdict.TOO_LARGE:
        return RankedFile(variant, verdict, -9.0, why_not=f"{model} needs 99 GiB, but 16 GiB are free.")
    return RankedFile(variant, verdict, worth, plan(model, quant, size, tps, first_token))


def row(
    name: str,
    path: Path,
    *,
    place: Place = Place.OWN,
    of: CatalogueEntry | None = None,
    damage: str = "",
    used: float | None = None,
    size: int = 2 * GIB,
    modalities: tuple[Modality, ...] = (),
    no_vision: str = "",
    mtp: bool = False,
    kind: ModelKind = "chat",
    n_params: int = 0,
) -> ModelRow:
    found = FoundModel(
        place, name, (ModelPartFile(path, size, 0),), "Q4_K_M", tags=(name.removeprefix("ollama/"),)
    )
    full_name = str(path) if place is Place.ELSEWHERE else f"{place.value}/{name}"
    model = LocalModel(name, full_name, found, of, "Q4_K_M")
    use = ModelUse(str(path), used) if used is not None else None
    summary = HeaderSummary(
        needs=((4096, GIB),),
        damage=damage,
        modalities=modalities,
        no_vision=no_vision,
        mtp=mtp,
        kind=kind,
        n_params=n_params,
    )
    return ModelRow(model, summary, use, 16 * GIB)


@dataclass
class Fake:
    """What a test's library contains; `gate` delays the comparison with the machine."""

    rows: Sequence[ModelRow] = ()
    nearby: Sequence[ModelRow] = ()
    entries: Sequence[CatalogueEntry] = ()
    best: Sequence[RankedFile] = ()
    local: dict[Path, RankedFile] = field(default_factory=dict)
    surveys: dict[str, Sequence[RankedFile]] = field(default_factory=dict)
    offline: str = ""
    reach: HubReach = field(default_factory=HubReach)
    problem: EdgechatError | None = None
    gate: threading.Event = field(default_factory=threading.Event)
    asked: list[str] = field(default_factory=list)
    measured: bool = False

    def __post_init__(self) -> None:
        self.gate.set()

    def library(self, **others: Callable[..., Any]) -> ModelLibrary:
        """Return the library; downloading and deleting are real unless replaced in `others`."""
        functions = {
            "catalogue": lambda: self.entries,
            "inventory": lambda _current: self.rows,
            "nearby": lambda _listed: self.nearby,
            "overview": self._overview,
            "survey": self._survey,
            "offline": lambda: self.offline,
            "probe": lambda: self.reach,
        }
        return replace(ModelLibrary.real(), **(functions | others))

    def _overview(self, _rows: Sequence[ModelRow]) -> SurveyOverview:
        self.gate.wait(10)
        if self.problem is not None:
            raise self.problem
        cpu = Cpu("A processor", (Core((0,)), Core((1,))), frozenset({0, 1}))
        profile = DeviceProfile(cpu, Memory(32 * GIB, 16 * GIB))
        chosen = next((one for one in self.best if one.plan is not None), None)
        found = SurveyFindings(None, "32 GiB of RAM, 16 GiB free", tuple(self.best), chosen)
        history = Calibration()
        for _ in range(3 if self.measured else 0):
            history = history.with_run(WHERE, decode=1.0)
        return SurveyOverview(profile, found, self.local, history)

    def _survey(self, name: str) -> SurveyFindings:
        self.asked.append(name)
        options = tuple(self.surveys.get(name, ()))
        chosen = next((one for one in options if one.plan is not None), None)
        return SurveyFindings(name, "a machine", options or (option(name),), chosen)


class Stage(App[None]):
    """Shows one screen, and stores its result."""

    def __init__(self, library: ModelLibrary, screen: Callable[[ModelLibrary, Pulls], Screen[Any]]) -> None:
        super().__init__(ansi_color=True)
        self.register_theme(TERMINAL)
        self.theme = TERMINAL.name
        self.animation_level = "none"
        self.pulls = Pulls(library)
        self.results: list[Any] = []
        self._made = lambda: screen(library, self.pulls)

    def on_mount(self) -> None:
        self.push_screen(self._made(), self.results.append)

    async def on_unmount(self) -> None:
        await self.pulls.close()
