"""LoadPlan: everything a load needs, decided before the load, with the reasons; and how a real load
differs.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from edgechat.models.formats.header import ModelKind
from edgechat.models.local.ollama_store import ModelDefaults
from edgechat.models.remote.model import HostedModel
from edgechat.native.params import Buffer, LoadParams
from edgechat.planner.companions import AdapterPlan, ProjectorPlan
from edgechat.planner.estimate.calibration import RunConditions
from edgechat.planner.estimate.speed import Forecast, Prediction
from edgechat.settings import Backend, EngineName, SamplingDefaults

LABELS: dict[Backend, str] = {"llama.cpp": "llama.cpp", "mlx": "MLX"}
"""What people call it."""
OWN_LAYERS, NGRAMS = "its own layers (MTP)", "n-grams"
"""What people call the drafters that are no model."""


_NOT_OF_REMOTES = (
    *("backend", "file_bytes", "cache_type", "threads", "gpu_layers", "n_layers", "n_batch", "n_ubatch"),
    *("n_seq_max", "n_outputs_max", "n_rs_seq", "flash_attention", "exact", "experts_in_ram", "ngrams"),
)


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What the load takes of one memory, in bytes."""

    name: str
    """'RAM', llama.cpp's name of an accelerator, or 'MLX'."""
    budget_bytes: int
    """What may be taken, when the plan was made."""
    weights_bytes: int = 0
    cache_bytes: int = 0
    compute_bytes: int = 0
    program_bytes: int = 0
    """Of the process around the model; in RAM only."""
    checkpoint_bytes: int = 0
    """In RAM only."""
    projector_bytes: int = 0
    """Everything that makes pictures and sound readable: weights, buffers, and in RAM the picture itself."""

    adapter_bytes: int = 0
    """Of LoRA adapters."""

    @property
    def total_bytes(self) -> int:
        """Everything together."""
        model = self.weights_bytes + self.cache_bytes + self.compute_bytes
        beside = self.projector_bytes + self.adapter_bytes
        return model + self.program_bytes + self.checkpoint_bytes + beside


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """What a quantization loses: the mean Kullback-Leibler divergence from the unquantized model."""

    value: float
    source: str
    measured: bool = False
    """On this machine, of the file itself (`edgechat bench --quality`)."""


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """Another plan that was near, and why it was not taken."""

    model: str
    quant: str | None
    context: int
    decode_tps: float
    why_not: str
    backend: Backend = "llama.cpp"


DraftKind = Literal["model", "mtp", "eagle3"]
"""What drafts from a file of its own: a small model, or layers that read the target's hidden states."""


class DraftPlan(LoadParams, frozen=True, kw_only=True):
    """How what drafts for a model is loaded beside it."""

    kind: DraftKind = "model"

    model_path: str
    """Empty where it is not on this machine."""
    model_name: str
    quant: str | None = None
    file_bytes: int = 0
    total_bytes: int = 0
    """What it takes altogether; it is part of what the plan says of each memory."""
    forecast: Forecast | None = None
    """How long its tokens take."""


class HeadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The layers of the model itself that draft for it (MTP)."""

    total_bytes: int
    """What drafting with them takes: weights, cache, buffers, and copies of recurrent states. It is part of
    what the plan says of each memory."""
    gain: float
    """How many times as fast as without them replies are expected to be."""


PORT, API_KEY = "PORT", "API_KEY"
"""Words of a command line that stand for what is chosen when it is started."""


class ProgramPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a program is started that runs the model."""

    engine: EngineName
    command: tuple[str, ...]
    """Its command line, with PORT and, where it takes none otherwise, API_KEY."""
    environment: dict[str, str] = {}
    """Variables that it is given."""
    inherited: tuple[str, ...] = ()
    """Variables of edgechat's own environment that it needs, beside those that every program does."""
    key_variable: str = ""
    """The variable that gives it its API key; '': none does."""


class LoadPlan(LoadParams, frozen=True, kw_only=True):
    """How a model is loaded. It is sent to the worker, and shown to users.

    Counts are tokens, sequences or layers; sizes are bytes.
    """

    model_path: str
    """Of an MLX model its folder. Empty where the model is not on this machine."""
    model_name: str
    backend: Backend = "llama.cpp"
    quant: str | None = None
    file_bytes: int = 0
    n_layers: int = 0
    memory: tuple[DeviceMemory, ...] = ()
    """By device; RAM first."""
    checkpoint_bytes: int = 0
    """What checkpoints of sequences that cannot be cut may take: part of what `memory` says."""
    buffers: tuple[Buffer, ...] = ()
    """The same by type of buffer, as llama.cpp's own allocator says; empty where the sizes are estimated."""
    end_tokens: tuple[int, ...] = ()
    """Ids that end a reply beside those that the backend finds by itself."""
    draft: DraftPlan | None = None
    """None: no model drafts for it."""
    head: HeadPlan | None = None
    """Of its own layers that draft for it (MTP); None: there are none, or `mtp` is off."""
    ngrams: bool = False
    """Whether the n-grams of the conversation draft for it."""
    no_draft: str = ""
    """Why there are no drafts, or not by the requested model; a sentence."""
    projector: ProjectorPlan | None = None
    """None: it reads text alone."""
    no_vision: str = ""
    """Why, of a model that could see or hear; a sentence."""
    adapters: tuple[AdapterPlan, ...] = ()
    """LoRA adapters that there is memory for; requests are computed with them unless they say otherwise."""
    forecast: Forecast | None = None
    """How long a token takes before any correction; real runs are compared with it."""
    predicted: Prediction | None = None
    where: RunConditions | None = None
    """What the speed depends on: the key for calibration."""
    kl_divergence: Divergence | None = None
    defaults: ModelDefaults = ModelDefaults()
    """What is kept beside the file, in Ollama's store."""
    sampling: SamplingDefaults = SamplingDefaults()
    """What settings.toml says, and below that what the model's makers recommend."""
    thinking_sampling: SamplingDefaults | None = None
    """The same where thinking is switched on; None: no other."""
    answering_sampling: SamplingDefaults | None = None
    """... where it is switched off."""
    notes: tuple[str, ...] = ()
    """Requests that could not be met."""
    reasons: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    anyway: bool = False
    """Load it although it does not seem to fit."""
    remote: HostedModel | None = None
    """Of another server's model: which one; nothing but its context is planned. None: it runs here."""
    program: ProgramPlan | None = None
    """The program that is started as that server. Then the load is planned, too."""

    def for_draft(self) -> LoadPlan | None:
        """Return how the draft model is loaded; None if there is none."""
        if self.draft is None:
            return None
        return LoadPlan(
            **params_of(self.draft),
            model_path=self.draft.model_path,
            model_name=self.draft.model_name,
            backend=self.backend,
            quant=self.draft.quant,
            file_bytes=self.draft.file_bytes,
            forecast=self.draft.forecast,
            end_tokens=self.end_tokens,  # its tokens are the same
        )

    @property
    def kind(self) -> ModelKind:
        """What it is loaded for."""
        return "reranking" if self.reranks else "embedding" if self.embeddings else "chat"

    @property
    def drafters(self) -> tuple[str, ...]:
        """What drafts for it, by names for people."""
        model = (self.draft.model_name,) if self.draft is not None else ()
        return (*model, *[OWN_LAYERS] * self.mtp, *[NGRAMS] * self.ngrams)

    def sampling_for(self, think: bool | None) -> SamplingDefaults:
        """Return the sampling options for thinking on, off, or by the model's default (None)."""
        switched = {True: self.thinking_sampling, False: self.answering_sampling}
        chosen = None if think is None else switched[think]
        return chosen or self.sampling

    @property
    def weights_bytes(self) -> int:
        """Of all memories together."""
        return sum(memory.weights_bytes for memory in self.memory)

    @property
    def cache_bytes(self) -> int:
        """Of all memories together."""
        return sum(memory.cache_bytes for memory in self.memory)

    @property
    def compute_bytes(self) -> int:
        """Of all memories together."""
        return sum(memory.compute_bytes for memory in self.memory)

    @property
    def total_bytes(self) -> int:
        """What the load takes altogether."""
        return sum(memory.total_bytes for memory in self.memory)


def params_of(other: LoadParams) -> dict[str, Any]:
    """Return the LoadParams of a struct that has more fields, by name."""
    return {name: getattr(other, name) for name in LoadParams.__struct_fields__}


def as_json(plan: LoadPlan) -> dict[str, Any]:
    """Return a plan as JSON for programs; sizes are bytes, times milliseconds, unknown values null."""
    values = {
        "model": plan.model_name,
        "path": plan.model_path or None,
        "backend": plan.backend,
        "quant": plan.quant,
        "file_bytes": plan.file_bytes,
        "context": plan.context,
        "cache_type": plan.cache_type,
        "threads": plan.threads,
        "gpu_layers": plan.gpu_layers,
        "n_layers": plan.n_layers,
        "split": dict(zip(plan.devices, plan.split, strict=True)),
        "experts_in_ram": plan.experts_in_ram,
        "n_batch": plan.n_batch,
        "n_ubatch": plan.n_ubatch,
        "n_seq_max": plan.n_seq_max,
        "n_outputs_max": plan.n_outputs_max,
        "n_rs_seq": plan.n_rs_seq,
        "flash_attention": plan.flash_attention,
        "devices": [
            {**msgspec.to_builtins(memory), "total_bytes": memory.total_bytes} for memory in plan.memory
        ],
        "exact": bool(plan.buffers),
        "draft": plan.draft
        and {
            "model": plan.draft.model_name,
            "kind": plan.draft.kind,
            "path": plan.draft.model_path or None,
            "quant": plan.draft.quant,
            "file_bytes": plan.draft.file_bytes,
            "context": plan.draft.context,
            "total_bytes": plan.draft.total_bytes,
        },
        "mtp": plan.head and {"total_bytes": plan.head.total_bytes, "expected_speedup": plan.head.gain},
        "drafters": list(plan.drafters),
        "projector": plan.projector
        and {
            **msgspec.to_builtins(plan.projector),
            "path": plan.projector.path or None,
            "device": plan.projector.device or None,
            "total_bytes": plan.projector.total_bytes,
        },
        "no_vision": plan.no_vision or None,
        "adapters": [
            {
                "name": one.name,
                "path": one.path,
                "scale": one.scale,
                "rank": one.rank,
                "bytes": one.total_bytes,
            }
            for one in plan.adapters
        ],
        "ngrams": plan.ngrams,
        "no_draft": plan.no_draft or None,
        "predicted": msgspec.to_builtins(plan.predicted),
        "kl_divergence": msgspec.to_builtins(plan.kl_divergence),
        "notes": list(plan.notes),
        "reasons": list(plan.reasons),
        "alternatives": msgspec.to_builtins(plan.alternatives),
        "remote": msgspec.to_builtins(plan.remote),
        "program": msgspec.to_builtins(plan.program),
    }
    if plan.remote is not None:  # which its server decides
        values |= dict.fromkeys(_NOT_OF_REMOTES)
    return values
