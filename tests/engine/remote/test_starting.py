"""What is shown of the logs of real programs while they start."""

import pytest

from edgechat.engine.remote.starting import Starting
from edgechat.models.remote.measured import EngineStart, note_start
from edgechat.models.remote.model import HostedModel
from edgechat.planner.plan import LoadPlan

VLLM = "(Worker pid=28775) INFO 11-28 05:41:13 "
LOADING = VLLM + "[cpu_model_runner.py:68] Starting to load model /models/m...\n"


def starting(kind="vllm"):
    remote = HostedModel(server=kind, id="m", kind=kind, url="", is_started=True)
    return Starting(LoadPlan(model_path="", model_name=remote.name, context=256, remote=remote))


@pytest.mark.parametrize(
    ("kind", "log", "shown"),
    [
        ("vllm", "Triton is installed, but doesn't include CPU backend.\n", "Starting vLLM, 0 s"),
        ("vllm", "Enforce eager set, disabling torch.compile\n", "Starting vLLM, 0 s"),
        ("vllm", LOADING, "Starting vLLM: loading the weights, 0 s"),
        (
            "vllm",
            LOADING + "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<?, ?it/s]\r",
            "Starting vLLM: loading the weights 50 %, 0 s",
        ),
        ("vllm", LOADING + "Warming up model for the compilation...\n", "Starting vLLM: compiling, 0 s"),
        ("vllm", "Starting vLLM server on http://127.0.0.1:45461\n", "Starting vLLM: nearly ready, 0 s"),
        (
            "transformers",
            "Loading weights:  35%|###   | 102/291 [00:00<00:00, 5833.25it/s]\r",
            "Starting Transformers: loading the weights 35 %, 0 s",
        ),
        (
            "llama-server",
            "0.00.006.467 I srv    load_model: loading model '/m.gguf'\n",
            "Starting llama-server: loading the weights, 0 s",
        ),
    ],
)
def test_a_log_becomes_a_line(kind, log, shown):
    assert starting(kind).line(log) == shown


def test_a_stage_stays_until_the_next_one():
    one = starting()
    one.line(LOADING)
    assert one.line("(Worker pid=1) INFO a line of another matter\n") == (
        "Starting vLLM: loading the weights, 0 s"
    )


def test_the_time_of_the_last_start_is_shown():
    note_start("vllm:m", EngineStart(54.2))
    note_start("vllm:m", EngineStart(failure="ended before it was ready"))
    assert starting().line("") == "Starting vLLM, 0 s (54 s last time)"
