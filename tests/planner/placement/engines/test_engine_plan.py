"""Plans of models that other programs run: sizes by hand, where they go, and the command line."""

import json
from dataclasses import replace

import msgspec
import pytest

from edgechat import settings
from edgechat.base.errors import (
    DoesNotFit,
    EdgechatError,
    EngineMissing,
    ModelFileError,
    ModelNotFound,
    OptionWithoutEffect,
)
from edgechat.device.accelerators import Accelerator
from edgechat.device.cpu import Core, Cpu
from edgechat.device.memory import Memory
from edgechat.device.profile import probe
from edgechat.planner.placement.engine_plan import engine_plan, read_safetensors
from edgechat.planner.placement.programs import split_engine, start_of
from edgechat.planner.plan import as_json
from edgechat.planner.prepare import prepare
from edgechat.planner.request import PlanRequest
from edgechat.settings import EngineProgram, Settings
from tests.kit import tiny

GIB = 2**30
CONFIG = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def folder(path, n_bytes=1000, **changes):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG | changes))
    with (path / "model.safetensors").open("wb") as file:
        file.truncate(n_bytes)  # without taking the disk for it
    return str(path)


def card(i, gib, **changes):
    one = Accelerator(
        name="A card",
        vendor="nvidia",
        devices=(),
        total=gib * GIB,
        free=gib * GIB,
        shares_ram=False,
        own=gib * GIB,
        pci=f"0000:{i:02}:00.0",
        sources=("nvml",),
    )
    return replace(one, **changes)


def machine(*cards, ram=64):
    return replace(probe(), memory=Memory(ram * GIB, ram * GIB), accelerators=cards)


def planned(engine, name, profile, **request):
    return engine_plan(engine, name, PlanRequest(**request), Settings(), profile, must_run=False)


def value(plan, option):
    assert plan.program is not None
    return plan.program.command[plan.program.command.index(option) + 1]


def test_the_cache_is_two_vectors_for_each_head_and_layer(tmp_path):
    model = read_safetensors(folder(tmp_path), offline=True)
    assert model.cache_bytes(1000) == 2 * 8 * 128 * 36 * 2 * 1000


@pytest.mark.parametrize(
    ("changes", "elements"),
    [
        ({"layer_types": ["sliding_attention"] * 35 + ["full_attention"], "sliding_window": 100}, 4500),
        ({"layer_types": ["linear_attention"] * 35 + ["full_attention"]}, 1000),
        ({"sliding_window": None}, 36000),
    ],
)
def test_layers_with_windows_or_states_keep_less(tmp_path, changes, elements):
    model = read_safetensors(folder(tmp_path, **changes), offline=True)
    assert model.cache_bytes(1000) == 2 * 8 * 128 * 2 * elements


def test_latent_attention_keeps_one_vector(tmp_path):
    model = read_safetensors(folder(tmp_path, kv_lora_rank=512, qk_rope_head_dim=64), offline=True)
    assert model.cache_bytes(10) == (512 + 64) * 36 * 2 * 10


def test_nf4_leaves_the_embeddings_as_they_are(tmp_path):
    tables, layers = 2 * 151936 * 4096, 7 * 10**9
    model = read_safetensors(folder(tmp_path, 2 * (tables + layers)), offline=True)
    assert model.weights_bytes() == 2 * (tables + layers)
    assert model.weights_bytes("int8") == 2 * tables + layers
    assert 2 * tables + 0.51 * layers < model.weights_bytes("nf4") < 2 * tables + 0.53 * layers


def test_one_card_takes_what_is_free_less_a_margin(tmp_path):
    name = folder(tmp_path, 16 * GIB)
    plan = planned("vllm", name, machine(card(0, 24, free=20 * GIB)))
    assert value(plan, "--tensor-parallel-size") == "1"
    assert value(plan, "--gpu-memory-utilization") == "0.81"
    assert value(plan, "--max-model-len") == f"{plan.context}"
    assert [part.name for part in plan.memory] == ["RAM", "GPU0"]
    assert plan.memory[1].weights_bytes == 16 * GIB
    assert "calculated, not measured" in plan.reasons[0]
    assert as_json(plan)["program"]["command"][:2] == ("vllm", "serve")


@pytest.mark.parametrize(("engine", "option"), [("vllm", "--tensor-parallel-size"), ("sglang", "--tp-size")])
def test_more_cards_are_taken_only_where_fewer_do_not_hold_it(tmp_path, engine, option):
    cards = [card(i, 24) for i in range(4)]
    assert value(planned(engine, folder(tmp_path, 16 * GIB), machine(*cards)), option) == "1"
    two = planned(engine, folder(tmp_path, 32 * GIB), machine(*cards))
    assert value(two, option) == "2"
    assert two.program is not None
    assert two.program.environment["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_cards_that_are_taken_are_named_by_their_place_on_the_bus(tmp_path):
    cards = (card(3, 24), card(1, 24, free=4 * GIB))
    plan = planned("vllm", folder(tmp_path, 16 * GIB), machine(*cards))
    assert plan.program is not None
    assert plan.program.environment["CUDA_VISIBLE_DEVICES"] == "1"


def test_a_context_that_does_not_fit_is_shortened_unless_it_is_asked_for(tmp_path):
    name = folder(tmp_path, 20 * GIB)
    cards = machine(card(0, 24), ram=8)
    assert planned("vllm", name, cards).context == 16384
    with pytest.raises(DoesNotFit, match="calculated, not measured"):
        planned("vllm", name, cards, context=40960)
    assert planned("vllm", name, cards, context=40960, anyway=True).context == 40960
    with pytest.raises(DoesNotFit, match="trained on a context of 40960"):
        planned("vllm", name, cards, context=50000)


def test_without_a_card_the_ram_holds_it_all(tmp_path):
    plan = planned("sglang", folder(tmp_path, 16 * GIB), machine())
    assert value(plan, "--device") == "cpu"
    assert [part.weights_bytes for part in plan.memory] == [16 * GIB]


def test_transformers_quantizes_while_it_loads(tmp_path):
    name = folder(tmp_path, 16 * GIB)
    plan = planned("transformers", name, machine(), runtime_quant="nf4")
    assert value(plan, "--quantization") == "bnb-4bit"
    assert plan.quant == "nf4"
    plain = planned("transformers", name, machine(), runtime_quant="none")
    assert plain.program is not None
    assert "--quantization" not in plain.program.command
    with pytest.raises(EdgechatError, match="vLLM does not quantize"):
        planned("vllm", name, machine(), runtime_quant="nf4")


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8"])
def test_a_quantization_of_the_model_is_told(tmp_path, method):
    name = folder(tmp_path, quantization_config={"quant_method": method})
    plan = planned("vllm", name, machine(card(0, 24)))
    assert plan.quant == method.upper()
    with pytest.raises(EdgechatError, match="is already quantized"):
        planned("transformers", name, machine(), runtime_quant="int8")


def test_models_that_the_program_cannot_read_are_refused(tmp_path):
    with pytest.raises(ModelFileError, match="quantized for MLX"):
        planned("vllm", folder(tmp_path, quantization={"bits": 4, "group_size": 64}), machine())
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelFileError, match="no safetensors"):
        planned("vllm", str(tmp_path), machine())
    with pytest.raises(ModelNotFound, match="neither a folder"):
        planned("vllm", "no-such-model", machine())


def test_offline_is_passed_on_and_proxies_are_not(tmp_path):
    name = folder(tmp_path)
    plan = engine_plan("vllm", name, PlanRequest(), Settings(offline=True), machine(), must_run=False)
    assert plan.program is not None
    assert plan.program.environment["HF_HUB_OFFLINE"] == "1"
    assert "HTTPS_PROXY" not in plan.program.inherited
    online = planned("vllm", name, machine())
    assert online.program is not None
    assert "HF_HUB_OFFLINE" not in online.program.environment
    assert "HTTPS_PROXY" in online.program.inherited


def test_the_program_is_found_by_settings_then_path_then_uvx(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "elsewhere" / "python"))
    with pytest.raises(EngineMissing, match="vLLM is not installed") as raised:
        start_of("vllm", Settings())
    assert "[engines.vllm]" in (raised.value.hint or "")
    _program(tmp_path / "uvx")
    assert start_of("vllm", Settings())[1:] == ("--from", "vllm", "vllm", "serve")
    with pytest.raises(EngineMissing):
        start_of("llama-server", Settings())
    _program(tmp_path / "vllm")
    assert start_of("vllm", Settings()) == (str(tmp_path / "vllm"), "serve")
    python = _program(tmp_path / "my python")
    own = Settings(engines={"sglang": EngineProgram(command=f"'{python}' -m sglang.launch_server")})
    assert start_of("sglang", own) == (str(python), "-m", "sglang.launch_server")
    gone = Settings(engines={"vllm": EngineProgram(command="/nowhere/vllm")})
    with pytest.raises(EngineMissing, match="/nowhere/vllm does not exist"):
        start_of("vllm", gone)


def test_arguments_of_settings_come_last(tmp_path):
    config = Settings(engines={"vllm": EngineProgram(args=("--enforce-eager",), env=("MY_TOKEN",))})
    plan = engine_plan("vllm", folder(tmp_path), PlanRequest(), config, machine(), must_run=False)
    assert plan.program is not None
    assert plan.program.command[-1] == "--enforce-eager"
    assert "MY_TOKEN" in plan.program.inherited


@pytest.mark.parametrize(
    ("name", "engine"), [("vllm:a/b", "vllm"), ("qwen3:4b", None), ("vllm:", None), ("sglang/a", None)]
)
def test_names_of_engines(name, engine):
    assert split_engine(name)[0] == engine


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"draft": "ngram", "workers": ("ssh://box",)}, "--draft and --with have no effect on vllm:"),
        ({"adapters": ("a.gguf",)}, "--lora has no effect"),
        ({"backend": "llama.cpp"}, "--backend has no effect"),
        ({"vision": False}, "--no-vision has no effect"),
        ({"quality": "good"}, "--quality has no effect"),
    ],
)
def test_options_without_effect_are_refused_and_noted_for_later_models(tmp_path, options, told):
    name, request = f"vllm:{folder(tmp_path)}", PlanRequest(**options)
    with pytest.raises(OptionWithoutEffect, match=told):
        prepare(name, request, must_run=False)
    later = prepare(name, msgspec.structs.replace(request, is_strict=False), must_run=False)
    assert sum("has no effect" in note for note in later.notes) == len(options)


def test_settings_without_effect_are_noted(tmp_path, home):
    settings.settings_file().write_text(
        'draft = "ngram"\nadapters = ["a"]\nworkers = ["ssh://box"]\nthreads = 1\n'
    )
    safetensors = prepare(f"vllm:{folder(tmp_path)}", must_run=False)
    gguf = prepare(f"llama-server:{tiny('dense')}", must_run=False)
    for plan, expected in ((safetensors, "draft threads adapters workers"), (gguf, "draft adapters workers")):
        noted = [note.partition(" in settings.toml has no effect")[0] for note in plan.notes]
        assert " ".join(noted[-len(expected.split()) :]) == expected
    assert gguf.threads == 1
    assert (gguf.adapters, gguf.rpc, gguf.draft) == ((), (), None)


def _program(path):
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        ("", "hermes"),
        ("<tool_call>{}", "hermes"),
        ("<tool_call><function=", "qwen3_coder"),
        ("[TOOL_CALLS]", "mistral"),
    ],
)
def test_vllm_is_told_how_the_model_calls_tools(tmp_path, template, parser):
    name = folder(tmp_path / "m")
    if template:
        (tmp_path / "m" / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    assert value(planned("vllm", name, machine()), "--tool-call-parser") == parser


def test_vllm_compiles_for_cards_alone(tmp_path):
    name = folder(tmp_path / "m")
    eager = [
        "--enforce-eager" in planned("vllm", name, one).program.command
        for one in (machine(), machine(card(0, 24)))
    ]
    assert eager == [True, False]


def test_few_cores_are_all_vllms_unless_the_user_says_otherwise(tmp_path, monkeypatch):
    name, variable = folder(tmp_path / "m"), "VLLM_CPU_NUM_OF_RESERVED_CPU"
    few, many = (
        replace(probe(), cpu=Cpu("", tuple(Core((n,)) for n in range(n)), frozenset())) for n in (2, 16)
    )
    assert planned("vllm", name, few).program.environment[variable] == "0"
    assert variable not in planned("vllm", name, many).program.environment
    monkeypatch.setenv(variable, "1")
    own = Settings(engines={"vllm": EngineProgram(env=(variable,))})
    plan = engine_plan("vllm", name, PlanRequest(), own, few, must_run=False)
    assert variable not in plan.program.environment
    assert variable in plan.program.inherited
