"""LoadPlan: everything that is decided before a load, with the reasons."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from edgechat.models.formats.header import ModelKind
from edgechat.models.local.ollama_store import ModelDefaults
from edgechat.models.remote.model import HostedModel
from edgechat.native.params import Buffer, LoadParams
from edgechat.planner.companions import AdapterPlan, ProjectorPlan
from edgechat.planner.estimate.budget import Needs
from edgechat.planner.estimate.calibration import RunConditions
from edgechat.planner.estimate.speed import Forecast, Prediction
from edgechat.settings import Backend, EngineName, SamplingDefaults

LABELS: dict[Backend, str] = {"llama.cpp": "llama.cpp", "mlx": "MLX"}
"""Names of the backends, as shown to users."""
OWN_LAYERS, NGRAMS = "its own layers (MTP)", "n-grams"
"""Names for drafters that are not models."""


_NOT_OF_REMOTES = (
    *("backend", "file_bytes", "cache_type", "threads", "gpu_layers", "n_layers", "n_batch", "n_ubatch"),
    *("n_seq_max", "n_outputs_max", "n_rs_seq", "flash_attention", "exact", "experts_in_ram", "ngrams"),
)


class DeviceMemory(Needs, frozen=True, kw_only=True):
    """The memory that a load needs on one device."""

    name: str
    """'RAM', 'MLX', or llama.cpp's name for an accelerator."""
    budget_bytes: int
    """How many bytes were available when the plan was made."""

    @property
    def as_json(self) -> dict[str, Any]:
        """The memory as JSON, for other programs."""
        first = {"name": self.name, "budget_bytes": self.budget_bytes}
        return {**first, **msgspec.structs.asdict(self), "total_bytes": self.total_bytes}


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """Quantization loss: the mean Kullback-Leibler divergence from the unquantized model, in nats."""

    value: float
    source: str
    measured: bool = False
    """Whether this exact file was measured on this machine (`edgechat bench --quality`)."""


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """Another plan that came close, and why it was not chosen."""

    model: str
    quant: str | None
    context: int
    decode_tps: float
    why_not: str
    backend: Backend = "llama.cpp"


DraftKind = Literal["model", "mtp", "eagle3"]
"""A drafter in a separate file: a small model, or layers that read the target's hidden states."""


class DraftPlan(LoadParams, frozen=True, kw_only=True):
    """How to load a drafter from a separate file."""

    kind: DraftKind = "model"

    model_path: str
    """Path of its file; empty if it is not on this machine."""
    model_name: str
    quant: str | None = None
    file_bytes: int = 0
    total_bytes: int = 0
    """Total memory it needs, which is included in the plan's `memory`."""
    forecast: Forecast | None = None
    """Predicted seconds per drafted token."""


class HeadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Drafting with the model's own layers (MTP)."""

    total_bytes: int
    """Weights, cache, buffers, and copies of recurrent states, all included in the plan's `memory`."""
    gain: float
    """How much faster replies are expected to be, as a factor."""


PORT, API_KEY = "PORT", "API_KEY"
"""Placeholders in a command line for values chosen when the program starts."""


class ProgramPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How to start the program that runs the model."""

    engine: EngineName
    command: tuple[str, ...]
    """The command line. It contains PORT, and also API_KEY if there is no other way to pass the key."""
    environment: dict[str, str] = {}
    """Environment variables to set for the program."""
    inherited: tuple[str, ...] = ()
    """Environment variables that the program inherits in addition to those that every program inherits."""
    key_variable: str = ""
    """The environment variable that holds the API key, or '' if there is none."""


class LoadPlan(LoadParams, frozen=True, kw_only=True):
    """How to load a model. Sent to the worker process and shown to users.

    Counts are in tokens, sequences or layers; sizes are in bytes.
    """

    model_path: str
    """Path of the model's file, or of its folder for MLX. Empty if the model is not on this machine."""
    model_name: str
    backend: Backend = "llama.cpp"
    quant: str | None = None
    file_bytes: int = 0
    n_layers: int = 0
    memory: tuple[DeviceMemory, ...] = ()
    """One entry per device, RAM first."""
    checkpoint_bytes: int = 0
    """Limit for checkpoints of sequences that cannot be truncated. Included in `memory`."""
    buffers: tuple[Buffer, ...] = ()
    """Sizes for each buffer type, from llama.cpp's own allocator; empty if they are only estimated."""
    end_tokens: tuple[int, ...] = ()
    """Token ids that end a reply, in addition to those that the backend already knows."""
    draft: DraftPlan | None = None
    """The drafter in a separate file, or None."""
    head: HeadPlan | None = None
    """How the model's own layers (MTP) draft; None if there are none, or if `mtp` is off."""
    ngrams: bool = False
    """Whether n-grams from the conversation serve as drafts."""
    no_draft: str = ""
    """Why there is no drafting, or why the requested model does not draft, as a sentence."""
    projector: ProjectorPlan | None = None
    """The projector to load; None if the model reads only text."""
    no_vision: str = ""
    """Why a model that supports images or audio has no projector, as a sentence."""
    adapters: tuple[AdapterPlan, ...] = ()
    """LoRA adapters with reserved memory. They apply to every request unless the request says otherwise."""
    forecast: Forecast | None = None
    """Predicted seconds per token before any correction; real runs are compared with it."""
    predicted: Prediction | None = None
    where: RunConditions | None = None
    """The conditions that the speed depends on, used as the key for calibration."""
    kl_divergence: Divergence | None = None
    defaults: ModelDefaults = ModelDefaults()
    """Defaults from Ollama's store, if the file is stored there."""
    sampling: SamplingDefaults = SamplingDefaults()
    """The sampling options that the model's makers recommend, overridden by those in settings.toml."""
    thinking_sampling: SamplingDefaults | None = None
    """The same options with thinking on; None if they do not differ."""
    answering_sampling: SamplingDefaults | None = None
    """The same options with thinking off; None if they do not differ."""
    notes: tuple[str, ...] = ()
    """Sentences about requests that could not be met."""
    reasons: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    anyway: bool = False
    """Load the model even if it does not seem to fit."""
    remote: HostedModel | None = None
    """A model on another server, for which only the context is planned. None if the model runs here."""
    program: ProgramPlan | None = None
    """The program to start as the model's server; its load is planned as well."""

    def for_draft(self) -> LoadPlan | None:
        """Return the plan for loading the draft model, or None if there is none."""
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
            end_tokens=self.end_tokens,  # both models use the same tokens
        )

    @property
    def kind(self) -> ModelKind:
        """The kind of model that the file is loaded as."""
        return "reranking" if self.reranks else "embedding" if self.embeddings else "chat"

    @property
    def drafters(self) -> tuple[str, ...]:
        """The names of the drafters, as shown to users."""
        model = (self.draft.model_name,) if self.draft is not None else ()
        return (*model, *[OWN_LAYERS] * self.mtp, *[NGRAMS] * self.ngrams)

    def sampling_for(self, think: bool | None) -> SamplingDefaults:
        """Return the sampling options with thinking on, off, or left to the model's default (None)."""
        switched = {True: self.thinking_sampling, False: self.answering_sampling}
        chosen = None if think is None else switched[think]
        return chosen or self.sampling

    @property
    def compute_bytes(self) -> int:
        """Total size of the compute buffers in bytes, on all devices."""
        return sum(memory.compute_bytes for memory in self.memory)

    @property
    def total_bytes(self) -> int:
        """Total memory that the load needs, in bytes."""
        return sum(memory.total_bytes for memory in self.memory)


def params_of(other: LoadParams) -> dict[str, Any]:
    """Return the fields of LoadParams, keyed by name, without those that a subclass adds."""
    return {name: getattr(other, name) for name in LoadParams.__struct_fields__}


def as_json(plan: LoadPlan) -> dict[str, Any]:
    """Return a plan as JSON for other programs.

    Sizes are in bytes, times in milliseconds, and unknown values are null.
    """
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
        "devices": [memory.as_json for memory in plan.memory],
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
    if plan.remote is not None:  # decided by the server
        values |= dict.fromkeys(_NOT_OF_REMOTES)
    return values
