"""The LoadPlan of a model that a program runs which edgechat starts: what it takes, and its command line.

The sizes are formulas (see `SafetensorsModel`); those of llama-server are of the plan that edgechat would
make for itself, by llama.cpp's allocator.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from edgechat.base.errors import DoesNotFit, EdgechatError, EngineMissing, ModelFileError
from edgechat.base.text import mebibytes, one_line
from edgechat.device.accelerators import Accelerator
from edgechat.device.profile import DeviceProfile
from edgechat.models.remote.model import HostedModel
from edgechat.planner.machine import SIMULATED
from edgechat.planner.placement.budget import RAM, Card
from edgechat.planner.placement.engines.programs import (
    PROGRAMS,
    is_offline,
    is_uvx,
    settings_of,
    start_of,
    variables_of,
)
from edgechat.planner.placement.engines.safetensors_model import SafetensorsModel, read_safetensors
from edgechat.planner.plan import API_KEY, PORT, DeviceMemory, LoadPlan, ProgramPlan
from edgechat.planner.plan_model import CONTEXTS
from edgechat.planner.request import ENOUGH, PlanRequest
from edgechat.settings import EngineName, EngineProgram, Settings

_PROGRAM, _ON_CARD = 2 * 2**30, 2**30
"""Bytes beside weights and cache: in RAM of Python and torch, on a card of CUDA's context and activations."""
_MOST_SHARE = 0.95
_MANY_CORES = 8
"""From which on vLLM may keep a core for its front end, as it does: of two, that is half of the speed."""
_LOOPBACK = "127.0.0.1"
_CALL_PARSERS = {
    "<function=": "qwen3_coder",
    "[TOOL_CALLS]": "mistral",
    "ipython": "llama3_json",
    "<|channel|>": "openai",
    "<|tool_call>": "gemma4",
}
"""What stands in a chat template -> vLLM's parser of such tool calls; all others get Hermes' and Qwen's."""
_FITTING = 1.02
"""By which a load may exceed a budget: the formulas are no more exact."""


@dataclass(frozen=True, slots=True)
class _Placement:
    """Where a model goes."""

    cards: tuple[Accelerator, ...]
    """Empty: into the RAM."""
    context: int
    memory: tuple[DeviceMemory, ...]

    @property
    def excess(self) -> int:
        """Bytes by which the fullest memory is exceeded."""
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
    """Return how a program runs a model of safetensors. request: with what settings.toml says.

    must_run: raise EngineMissing where the program is not installed, rather than note it. Raises also
    ModelNotFound, ModelFileError, HubError, DoesNotFit, SettingsError.
    """
    start, notes = _start(engine, config, must_run=must_run)
    model = read_safetensors(name, offline=is_offline(config))
    _check(engine, model, request)
    placement, reasons = _placed(engine, model, request, profile)
    arguments = {"vllm": _of_vllm, "sglang": _of_sglang}.get(engine, _of_transformers)(
        model, placement, request
    )
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
    """Return how llama-server runs a GGUF file that edgechat has planned for itself. Raises EngineMissing."""
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
    where = "llama-server decides itself which layers go on a GPU."
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
    """Return what the command line begins with, and what users should know about that."""
    facts = PROGRAMS[engine]
    try:
        start = start_of(engine, config)
    except EngineMissing as error:
        if must_run:
            raise
        return (facts.executable, *facts.subcommand), (f"{error.message} {error.hint}",)
    if not is_uvx(start):
        return start, ()
    return start, (f"uvx runs {facts.label}; the first time, it downloads it, which is some GB.",)


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
            f"{model.name} is quantized already ({model.quantization}).", hint="Omit --quant."
        )


def _placed(
    engine: EngineName, model: SafetensorsModel, request: PlanRequest, profile: DeviceProfile
) -> tuple[_Placement, list[str]]:
    """Return where a model goes and with which context, and why. Raises DoesNotFit."""
    trained = model.trained_context
    wanted = request.context
    if wanted is not None and trained is not None and wanted > trained:
        raise DoesNotFit(
            f"{model.name} was trained on a context of {trained} tokens, not {wanted}.",
            hint=f"Use --ctx {trained} or less.",
        )
    contexts = [min(one, trained or one) for one in CONTEXTS] if wanted is None else [wanted]
    *on_cards, in_ram = _card_sets(engine, model, profile)
    # A conversation on fewer cards comes before more context, and any context on cards before the RAM.
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
            f"{least.context} tokens, by formula; {mebibytes(part.budget_bytes)} can be used.",
            hint="Use a smaller or quantized model, --ctx with fewer tokens, or --load-anyway.",
        )
    placement = fitting or least
    dtype = "quantized " + model.quantization if model.quantization else "as stored"
    weights = model.weights_bytes(request.runtime_quant or "none")
    reasons = [
        f"The sizes are by formula, not measured: {mebibytes(weights)} of weights "
        f"({request.runtime_quant if request.runtime_quant not in (None, 'none') else dtype}), and "
        f"{mebibytes(model.cache_bytes(placement.context))} of KV cache for {placement.context} tokens.",
        f"{model.name} is {'on this machine' if model.is_here else 'downloaded by the program'}.",
    ]
    n = len(placement.cards)
    if n > 1:
        how = "by layers" if engine == "transformers" else "by tensor parallelism"
        reasons.append(f"It takes {n} GPUs, {how}: fewer would not hold it.")
    elif not n:
        reasons.append("It runs on the CPU: no GPU that torch could use was found, or none that holds it.")
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
            name=_name(card, i),
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
    """Return the sets of cards to try, the smallest first, and the RAM last.

    Tensor parallelism needs alike cards, whose number divides the heads.
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


def _name(card: Accelerator, i: int) -> str:
    return card.devices[0] if card.devices else f"GPU{i}"


def _card_choice(placement: _Placement, profile: DeviceProfile) -> dict[str, str]:
    """Return the environment that shows a program its cards; numbers are those of the PCI bus."""
    nvidia = [card for card in profile.accelerators if card.vendor == "nvidia" and card.pci is not None]
    if len(nvidia) < 2 or not all(card in nvidia for card in placement.cards):
        return {}
    nvidia.sort(key=lambda card: card.pci or "")
    numbers = ",".join(str(nvidia.index(card)) for card in placement.cards)
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": numbers}


def _share(placement: _Placement) -> str:
    """Return the share of a card's memory that a program may take: all that is free, less a margin."""
    shares = [Card(card.name, card).budget / card.total for card in placement.cards]
    return f"{math.floor(100 * min(_MOST_SHARE, *shares)) / 100:.2f}"


def _of_vllm(model: SafetensorsModel, placement: _Placement, _request: PlanRequest) -> Sequence[str]:
    # How the weights are quantized it reads itself, and has the faster kernels if it is not told.
    arguments = [model.argument, "--host", _LOOPBACK, "--port", PORT, "--served-model-name", model.name]
    arguments += ["--max-model-len", f"{placement.context}"]
    # Without a parser it refuses every request that has tools.
    parser = next((name for sign, name in _CALL_PARSERS.items() if sign in model.template), "hermes")
    arguments += ["--enable-auto-tool-choice", "--tool-call-parser", parser]
    if placement.cards:
        arguments += ["--gpu-memory-utilization", _share(placement)]
        arguments += ["--tensor-parallel-size", f"{len(placement.cards)}"]
    else:  # compiling makes a start 50 s longer, and pays after 5,000 tokens (0.5B, two cores)
        arguments.append("--enforce-eager")
    return arguments


def _of_sglang(model: SafetensorsModel, placement: _Placement, _request: PlanRequest) -> Sequence[str]:
    arguments = ["--model-path", model.argument, "--host", _LOOPBACK, "--port", PORT]
    arguments += ["--served-model-name", model.name, "--context-length", f"{placement.context}"]
    arguments += ["--api-key", API_KEY]  # there is no other way to give it
    if placement.cards:
        return [
            *arguments,
            "--mem-fraction-static",
            _share(placement),
            "--tp-size",
            f"{len(placement.cards)}",
        ]
    return [*arguments, "--device", "cpu"]


def _of_transformers(model: SafetensorsModel, placement: _Placement, request: PlanRequest) -> Sequence[str]:
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
        raise EdgechatError(f"{one_line(id)} cannot stand in a command line.")
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
