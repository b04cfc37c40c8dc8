"""Plans for other engines: what a model needs in a program that edgechat starts, and how to start it.

The sizes are computed by formula (see `SafetensorsModel`). For llama-server, they come from the plan that
edgechat would make for itself, using llama.cpp's allocator.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edgechat.base.errors import DoesNotFit, EdgechatError, EngineMissing, ModelFileError, ModelNotFound
from edgechat.base.text import mebibytes, one_line
from edgechat.device.accelerators import Accelerator
from edgechat.device.profile import DeviceProfile
from edgechat.models.formats.mlx.config import (
    MAX_CONFIG,
    Config,
    bounded,
    folder_name,
    parse_config,
    parse_json,
)
from edgechat.models.formats.mlx.metadata import template_in
from edgechat.models.hub.client import ask_hub
from edgechat.models.hub.endpoint import Endpoint
from edgechat.models.hub.listing import list_repo
from edgechat.models.hub.names import parse_model_name
from edgechat.models.local.files import CONFIG
from edgechat.models.local.inventory import inventory
from edgechat.models.local.locations import hub_cache
from edgechat.models.remote.model import HostedModel
from edgechat.planner.estimate.budget import RAM, Card
from edgechat.planner.machine import SIMULATED
from edgechat.planner.placement.plan_model import CONTEXTS
from edgechat.planner.placement.programs import (
    PROGRAMS,
    is_offline,
    is_uvx,
    settings_of,
    start_of,
    variables_of,
)
from edgechat.planner.plan import API_KEY, PORT, DeviceMemory, LoadPlan, ProgramPlan
from edgechat.planner.request import ENOUGH, PlanRequest
from edgechat.settings import EngineName, EngineProgram, RuntimeQuant, Settings

_PROGRAM, _ON_CARD = 2 * 2**30, 2**30
"""Bytes needed in addition to weights and cache: in RAM for Python and torch; on a card for CUDA's context
and activations.
"""
_MOST_SHARE = 0.95
_MANY_CORES = 8
"""Number of cores below which vLLM must not reserve one for its front end: out of two, that would be half."""
_LOOPBACK = "127.0.0.1"
_CALL_PARSERS = {
    "<function=": "qwen3_coder",
    "[TOOL_CALLS]": "mistral",
    "ipython": "llama3_json",
    "<|channel|>": "openai",
    "<|tool_call>": "gemma4",
}
"""Maps strings in a chat template to vLLM's tool call parsers. The default is the one for Hermes and Qwen."""
_FITTING = 1.02
"""Factor by which a load may exceed a budget, as the formulas are not exact."""


@dataclass(frozen=True, slots=True)
class _Placement:
    cards: tuple[Accelerator, ...]
    """The cards to use; empty for RAM."""
    context: int
    memory: tuple[DeviceMemory, ...]

    @property
    def excess(self) -> int:
        """Bytes by which the fullest device exceeds its budget."""
        return max(part.total_bytes - int(_FITTING * part.budget_bytes) for part in self.memory)


def engine_plan(
    engine: EngineName,
    name: str,
    request: PlanRequest,
    config: Settings,
    profile: DeviceProfile,
    *,
    must_run: bool = True,
) -> LoadPlan:
    """Return the plan for running a safetensors model in another program.

    request: already merged with settings.toml. must_run: raise EngineMissing if the program is not installed,
    instead of just noting it. Also raises ModelNotFound, ModelFileError, HubError, DoesNotFit or
    SettingsError.
    """
    start, notes = _start(engine, config, must_run=must_run)
    model = read_safetensors(name, offline=is_offline(config))
    _check(engine, model, request)
    placement, reasons = _placed(engine, model, request, profile)
    if engine == "vllm":
        arguments = _of_vllm(model, placement)
    elif engine == "sglang":
        arguments = _of_sglang(model, placement)
    else:
        arguments = _of_transformers(model, request)
    environment = _card_choice(placement, profile)
    if engine == "vllm" and not placement.cards:
        n_bytes = model.cache_bytes(placement.context)
        environment["VLLM_CPU_KVCACHE_SPACE"] = f"{max(1, math.ceil(n_bytes / 2**30))}"
        if len(profile.cpu.cores) < _MANY_CORES:
            environment["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
    plan = LoadPlan(
        model_path="",
        model_name=f"{engine}:{model.name}",
        quant=request.runtime_quant
        if request.runtime_quant not in (None, "none")
        else model.quantization or None,
        context=placement.context,
        file_bytes=model.stored_bytes,
        memory=placement.memory,
        sampling=config.sampling,
        notes=notes,
        reasons=tuple(reasons),
        anyway=request.anyway,
    )
    return _with_program(
        plan,
        engine,
        model.argument if engine == "transformers" else model.name,
        (*start, *arguments),
        config,
        environment,
    )


def llama_server_plan(local: LoadPlan, config: Settings, *, must_run: bool = True) -> LoadPlan:
    """Return the plan for running a GGUF file in llama-server, based on edgechat's plan for itself.

    Raises EngineMissing.
    """
    start, notes = _start("llama-server", config, must_run=must_run)
    arguments = ["-m", local.model_path, "--host", _LOOPBACK, "--port", PORT, "--alias", local.model_name]
    arguments += [
        "-c",
        f"{local.context}",
        "-np",
        f"{local.n_seq_max}",
        "--kv-unified",
        "-t",
        f"{local.threads}",
        "--jinja",
        "--metrics",
    ]
    arguments += ["-ctk", local.cache_type, "-ctv", local.cache_type]
    if local.projector is not None and local.projector.path:
        arguments += ["--mmproj", local.projector.path]
    where = "llama-server itself decides which layers go on a GPU."
    if local.gpu_layers:
        arguments += ["-ngl", f"{local.gpu_layers}"]
        where = f"{local.gpu_layers} layers go on a GPU."
    plan = msgspec.structs.replace(
        local,
        model_path="",
        model_name=f"llama-server:{local.model_name}",
        draft=None,
        no_draft="",
        notes=(*local.notes, *notes),
        reasons=(
            f"The sizes are those of edgechat's own plan for this file. {where}",
            *(reason for reason in local.reasons if reason != local.no_draft),
        ),
        alternatives=(),
        predicted=None,
    )
    return _with_program(plan, "llama-server", local.model_name, (*start, *arguments), config, {})


def _start(
    engine: EngineName, config: Settings, *, must_run: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the first part of the command line, and notes for users."""
    facts = PROGRAMS[engine]
    try:
        start = start_of(engine, config)
    except EngineMissing as error:
        if must_run:
            raise
        return (facts.executable, *facts.subcommand), (f"{error.message} {error.hint}",)
    if not is_uvx(start):
        return start, ()
    return start, (f"uvx runs {facts.label}, and downloads it the first time (several GB).",)


def _check(engine: EngineName, model: SafetensorsModel, request: PlanRequest) -> None:
    label = PROGRAMS[engine].label
    if model.is_mlx:
        raise ModelFileError(
            f"{model.name} is quantized for MLX, which {label} cannot read.",
            hint="Use the model that it was made from, or run it without --engine on a Mac.",
        )
    quant = request.runtime_quant
    if quant in (None, "none"):
        return
    if engine != "transformers":
        raise EdgechatError(
            f"{label} does not quantize models while it loads them.",
            hint="Use a model that is quantized (AWQ, GPTQ, FP8), or --engine transformers.",
        )
    if model.quantization:
        raise EdgechatError(
            f"{model.name} is already quantized ({model.quantization}).", hint="Omit --quant."
        )


def _placed(
    engine: EngineName, model: SafetensorsModel, request: PlanRequest, profile: DeviceProfile
) -> tuple[_Placement, list[str]]:
    """Return a model's placement and context, with the reasons. Raises DoesNotFit."""
    trained = model.trained_context
    wanted = request.context
    if wanted is not None and trained is not None and wanted > trained:
        raise DoesNotFit(
            f"{model.name} was trained on a context of {trained} tokens, not {wanted}.",
            hint=f"Use --ctx {trained} or less.",
        )
    contexts = [min(one, trained or one) for one in CONTEXTS] if wanted is None else [wanted]
    *on_cards, in_ram = _card_sets(engine, model, profile)
    # Sufficient context on fewer cards beats more context, and any context on cards beats RAM.
    short = [one for one in contexts if one < min(ENOUGH, contexts[0])]
    long = [one for one in contexts if one not in short]
    tried = [
        _placement(model, request, profile, cards, context)
        for sets, some in ((on_cards, long), (on_cards, short), ([in_ram], contexts))
        for cards in sets
        for context in dict.fromkeys(some)
    ]
    fitting = next((one for one in tried if one.excess <= 0), None)
    least = min(tried, key=lambda one: one.excess)
    if fitting is None and not request.anyway:
        part = max(least.memory, key=lambda one: one.total_bytes - one.budget_bytes)
        raise DoesNotFit(
            f"{model.name} needs {mebibytes(part.total_bytes)} of {part.name} with a context of "
            f"{least.context} tokens (calculated, not measured), but only {mebibytes(part.budget_bytes)} can "
            "be used.",
            hint="Use a smaller or quantized model, --ctx with fewer tokens, or --load-anyway.",
        )
    placement = fitting or least
    dtype = "quantized " + model.quantization if model.quantization else "as stored"
    weights = model.weights_bytes(request.runtime_quant or "none")
    reasons = [
        f"The sizes are calculated, not measured: {mebibytes(weights)} of weights "
        f"({request.runtime_quant if request.runtime_quant not in (None, 'none') else dtype}), and "
        f"{mebibytes(model.cache_bytes(placement.context))} of KV cache for {placement.context} tokens.",
        f"{model.name} is {'on this machine' if model.is_here else 'downloaded by the program'}.",
    ]
    n = len(placement.cards)
    if n > 1:
        how = "by layer" if engine == "transformers" else "by tensor parallelism"
        reasons.append(f"It is split across {n} GPUs {how}, as it does not fit on fewer.")
    elif not n:
        reasons.append("It runs on the CPU: there is no GPU that torch can use, or none with enough memory.")
    return placement, reasons


def _placement(
    model: SafetensorsModel,
    request: PlanRequest,
    profile: DeviceProfile,
    cards: tuple[Accelerator, ...],
    context: int,
) -> _Placement:
    weights = model.weights_bytes(request.runtime_quant or "none")
    cache = model.cache_bytes(context)
    if not cards:
        ram = DeviceMemory(
            name=RAM,
            budget_bytes=profile.memory.available,
            weights_bytes=weights,
            cache_bytes=cache,
            program_bytes=_PROGRAM,
        )
        return _Placement((), context, (ram,))
    ram = DeviceMemory(name=RAM, budget_bytes=profile.memory.available, program_bytes=_PROGRAM)
    shares = (
        DeviceMemory(
            name=card.devices[0] if card.devices else f"GPU{i}",
            budget_bytes=Card(card.name, card).budget,
            weights_bytes=weights // len(cards),
            cache_bytes=cache // len(cards),
            compute_bytes=_ON_CARD,
        )
        for i, card in enumerate(cards)
    )
    return _Placement(cards, context, (ram, *shares))


def _card_sets(
    engine: EngineName, model: SafetensorsModel, profile: DeviceProfile
) -> list[tuple[Accelerator, ...]]:
    """Return the sets of cards to try, smallest first, and RAM last.

    Tensor parallelism requires identical cards, whose number must divide the number of heads.
    """
    cards = sorted(filter(_runs_torch, profile.accelerators), key=lambda card: -card.free)
    if engine == "transformers":
        sets = [tuple(cards[: n + 1]) for n in range(len(cards))]
    else:
        alike = [card for card in cards if card.name == cards[0].name]
        sets = [tuple(alike[:n]) for n in (1, 2, 4, 8) if n <= len(alike) and model.n_heads % n == 0]
    return [*sets, ()]


def _runs_torch(card: Accelerator) -> bool:
    is_known = card.vendor in ("nvidia", "amd") or card.devices == (SIMULATED,)
    return is_known and not card.shares_ram and card.total > 0


def _card_choice(placement: _Placement, profile: DeviceProfile) -> dict[str, str]:
    """Return the environment variables that select the cards, which are numbered in PCI bus order."""
    nvidia = [card for card in profile.accelerators if card.vendor == "nvidia" and card.pci is not None]
    if len(nvidia) < 2 or not all(card in nvidia for card in placement.cards):
        return {}
    nvidia.sort(key=lambda card: card.pci or "")
    numbers = ",".join(str(nvidia.index(card)) for card in placement.cards)
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": numbers}


def _share(placement: _Placement) -> str:
    """Return what fraction of a card's memory a program may use: the free memory minus a margin."""
    shares = [Card(card.name, card).budget / card.total for card in placement.cards]
    return f"{math.floor(100 * min(_MOST_SHARE, *shares)) / 100:.2f}"


def _of_vllm(model: SafetensorsModel, placement: _Placement) -> Sequence[str]:
    # vLLM detects the quantization itself, and picks faster kernels if it is not specified.
    arguments = [model.argument, "--host", _LOOPBACK, "--port", PORT, "--served-model-name", model.name]
    arguments += ["--max-model-len", f"{placement.context}"]
    # Without a parser, vLLM rejects every request with tools.
    parser = next((name for sign, name in _CALL_PARSERS.items() if sign in model.template), "hermes")
    arguments += ["--enable-auto-tool-choice", "--tool-call-parser", parser]
    if placement.cards:
        arguments += ["--gpu-memory-utilization", _share(placement)]
        arguments += ["--tensor-parallel-size", f"{len(placement.cards)}"]
    else:  # compiling takes 50 s, which pays off after 5,000 tokens (0.5B, two cores)
        arguments.append("--enforce-eager")
    return arguments


def _of_sglang(model: SafetensorsModel, placement: _Placement) -> Sequence[str]:
    arguments = ["--model-path", model.argument, "--host", _LOOPBACK, "--port", PORT]
    arguments += ["--served-model-name", model.name, "--context-length", f"{placement.context}"]
    arguments += ["--api-key", API_KEY]  # there is no other way to pass the key
    if placement.cards:
        return [
            *arguments,
            "--mem-fraction-static",
            _share(placement),
            "--tp-size",
            f"{len(placement.cards)}",
        ]
    return [*arguments, "--device", "cpu"]


def _of_transformers(model: SafetensorsModel, request: PlanRequest) -> Sequence[str]:
    arguments = [model.argument, "--host", _LOOPBACK, "--port", PORT]
    quant = {"nf4": "bnb-4bit", "int8": "bnb-8bit"}.get(request.runtime_quant or "")
    return [*arguments, "--quantization", quant] if quant else arguments


def _with_program(
    plan: LoadPlan,
    engine: EngineName,
    id: str,
    command: tuple[str, ...],
    config: Settings,
    environment: dict[str, str],
) -> LoadPlan:
    command = (*command, *(config.engines[engine].args if engine in config.engines else ()))
    if any("\0" in word for word in command):
        raise EdgechatError(f"{one_line(id)} cannot be part of a command line.")
    own = config.engines.get(engine, EngineProgram()).env
    environment = {
        name: value for name, value in environment.items() if not (name in own and name in os.environ)
    }
    return msgspec.structs.replace(
        plan,
        remote=HostedModel(server=engine, id=id, kind=engine, url="", context=plan.context, is_started=True),
        program=ProgramPlan(
            engine=engine,
            command=command,
            environment=settings_of(engine, config) | environment,
            inherited=variables_of(engine, config),
            key_variable=PROGRAMS[engine].key_variable,
        ),
    )


_TIME_LIMIT = 60.0
_MAX_TOKENIZER = 2**24
_BYTES: dict[RuntimeQuant, float] = {"nf4": 0.5 + 1 / 64 + 1 / 512, "int8": 1.0}
"""Bytes per weight. NF4 has a one-byte scale for each group of 64 weights (QLoRA, section 3)."""
_SLIDING = ("sliding_attention", "chunked_attention")
_WITHOUT_CACHE = ("linear_attention", "mamba", "mamba2", "conv", "recurrent")


@dataclass(frozen=True, slots=True)
class SafetensorsModel:
    """A safetensors model, local or on the hub, with its config.json and the size of its weights."""

    name: str
    argument: str
    """What to pass to the program as the model: a folder's path, or owner/repo."""
    config: Config
    stored_bytes: int
    """Total size of the stored weights in bytes."""
    is_here: bool
    template: str = ""
    """The chat template, or '' if it is not on this machine."""

    @property
    def trained_context(self) -> int | None:
        """The context that it was trained with, in tokens, or None if unknown."""
        return self.config.number("max_position_embeddings", "n_positions", "seq_length", "model_max_length")

    @property
    def n_heads(self) -> int:
        """Number of attention heads per layer."""
        return max(1, self.config.require("num_attention_heads", "n_head"))

    @property
    def quantization(self) -> str:
        """Quantization method in capitals ('AWQ', 'GPTQ', 'FP8'), or '' if the weights are not quantized."""
        stated = self.config.get("quantization_config")
        method = stated.get("quant_method") if isinstance(stated, dict) else None
        return one_line(method, 40).upper() if isinstance(method, str) else ""

    @property
    def is_mlx(self) -> bool:
        """Whether the weights are quantized in a way that only MLX can read."""
        return isinstance(self.config.whole.get("quantization"), dict)

    @property
    def element_bytes(self) -> int:
        """Size in bytes of one value in computations and in the KV cache."""
        dtype = self.config.get("dtype") or self.config.get("torch_dtype")
        return 4 if dtype == "float32" else 2

    def weights_bytes(self, quant: RuntimeQuant = "none") -> int:
        """Return how many bytes the weights take in memory. Embeddings and output keep their stored type."""
        if quant == "none":
            return self.stored_bytes
        tables = 1 if self.config.get("tie_word_embeddings") else 2
        n_table = tables * self.config.require("vocab_size") * self.config.require("hidden_size", "n_embd")
        kept = min(self.stored_bytes, n_table * self.element_bytes)
        return int(kept + (self.stored_bytes - kept) / self.element_bytes * _BYTES[quant])

    def cache_bytes(self, n_tokens: int) -> int:
        """Return the size in bytes of the keys and values for `n_tokens` tokens.

        For each token, a layer takes 2 x KV heads x head size x bytes per value. Layers with a window store
        at most one window, and layers without attention store nothing that grows with the context. With
        latent attention (MLA), the latent vector and the rotated part are stored instead.
        """
        config = self.config
        latent = config.number("kv_lora_rank")
        if latent:
            per_token = latent + (config.number("qk_rope_head_dim") or 0)
        else:
            size = config.number("head_dim") or config.require("hidden_size", "n_embd") // self.n_heads
            per_token = 2 * size * (config.number("num_key_value_heads", "n_head_kv") or self.n_heads)
        window = config.number("sliding_window") or n_tokens
        kinds = config.layer_types("layer_types") or ("full_attention",) * config.n_layers
        tokens = sum(
            min(window, n_tokens) if kind in _SLIDING else n_tokens
            for kind in kinds
            if kind not in _WITHOUT_CACHE
        )
        return per_token * self.element_bytes * tokens


def read_safetensors(name: str, *, offline: bool) -> SafetensorsModel:
    """Return the model in a folder or in a hub repository (owner/repo).

    From the hub, only the file list and config are read. Raises ModelNotFound, ModelFileError or HubError.
    """
    folder = _folder(name)
    if folder is not None:
        return _in_folder(folder)
    repo = parse_model_name(name)
    if repo is None or repo.quant is not None or repo.file is not None or repo.revision is not None:
        raise ModelNotFound(
            f"{one_line(name, 100)} is neither a folder with config.json and safetensors nor owner/repo.",
            hint="GGUF files are run by edgechat itself, or with --engine llama-server.",
        )
    return _on_hub(repo.repo, offline=offline)


def _folder(name: str) -> Path | None:
    path = Path(os.path.abspath(os.path.expanduser(name))) if "\0" not in name else Path()
    if (path / CONFIG).is_file() and name:
        return path
    known = next((model.path for model in inventory().find(name) if model.path.is_dir()), None)
    if known is not None:
        return known
    repo = parse_model_name(name)
    if repo is None:
        return None
    snapshots = hub_cache() / f"models--{repo.repo.replace('/', '--')}" / "snapshots"
    try:  # if files are missing, the program will download them
        found = sorted((one for one in snapshots.iterdir() if _weights(one)), key=os.path.getmtime)
    except OSError:
        return None
    return found[-1] if found and (found[-1] / CONFIG).is_file() else None


def _in_folder(folder: Path) -> SafetensorsModel:
    name = folder_name(folder)
    sizes = _weights(folder)
    if not sizes:
        raise ModelFileError(f"{name} has no safetensors.", hint="Use the folder of a complete model.")
    try:
        config = parse_config(bounded(folder / CONFIG, MAX_CONFIG), name)
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{name} cannot be read: {error}.", hint="Check the folder.") from error
    # Pass models in the hub's cache by name, so that the program can download missing files.
    in_cache = folder.parent.name == "snapshots" and folder.is_relative_to(hub_cache())
    argument = name if in_cache else str(folder)
    return SafetensorsModel(name, argument, config, _total(sizes.items()), True, _template(folder))


def _template(folder: Path) -> str:
    with contextlib.suppress(OSError, ValueError, ModelFileError):
        if (path := folder / "chat_template.jinja").is_file():
            return bounded(path, MAX_CONFIG).decode("utf-8", "replace")
        if (path := folder / "tokenizer_config.json").is_file():
            return template_in(parse_json(bounded(path, _MAX_TOKENIZER), path.name)) or ""
    return ""


def _on_hub(repo: str, *, offline: bool) -> SafetensorsModel:
    if offline:
        raise ModelNotFound(f"{repo} is not on this machine, and edgechat is offline.", hint="Go online.")
    listing = list_repo(repo, None)
    sizes = [(file.name, file.size) for file in listing.files if "/" not in file.name]
    weights = _total(sizes)
    if not weights or CONFIG not in dict(sizes):
        raise ModelFileError(
            f"{repo} has no config.json and safetensors that such a program could run.",
            hint=f"To see which of its files edgechat itself could run: edgechat plan {repo}",
        )
    hub = Endpoint(listing.hub)
    url = hub.file(repo, listing.commit, CONFIG)
    data = ask_hub(hub, repo, _TIME_LIMIT, lambda client: client.read(url, MAX_CONFIG))
    return SafetensorsModel(repo, repo, parse_config(data, repo), weights, False)


def _weights(folder: Path) -> dict[str, int]:
    try:
        return {file.name: file.stat().st_size for file in folder.glob("*.safetensors") if file.is_file()}
    except OSError:
        return {}


def _total(sizes: Iterable[tuple[str, int]]) -> int:
    """Return the total size of the weights.

    Some models include a second copy of the weights in the makers' own format; this copy is not counted.
    """
    stored = {name: size for name, size in sizes if name.endswith(".safetensors")}
    usual = {name: size for name, size in stored.items() if name.startswith("model")}
    return sum((usual or stored).values())
