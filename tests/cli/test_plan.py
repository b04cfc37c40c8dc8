"""`edgechat plan` as someone meets it first: what is typed, what is answered, and what programs get."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from edgechat.base.text import figure, seconds
from edgechat.cli.commands import plan as command
from edgechat.cli.main import app, translated
from edgechat.cli.values import amount, quality_class, rate
from edgechat.models.quality import QualityClass
from edgechat.settings import settings_file
from tests.hub import Fault
from tests.kit import corrupt, tiny

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured")]

GIB = 2**30
SMALL = ("--ram", "8GiB", "--vram", "0", "--bandwidth", "50GB/s")


@dataclass(frozen=True)
class Said:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out, parse_constant=pytest.fail)


Plan = Callable[..., Said]


@pytest.fixture
def plan(capsys, monkeypatch):
    """Return the command, which is not measured but given a machine's speed."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["edgechat", "plan", *words])
        code = translated(lambda: app(standalone_mode=True))
        return Said(code, *capsys.readouterr())

    return run


@pytest.fixture
def model(tmp_path):
    return str(shutil.copy(tiny(), tmp_path / "mine.gguf"))


def sound(said, code=0):
    """Assert what holds of every page: no line too long, no exponent, no escape, nothing on stderr."""
    assert (said.code, said.err) == (code, "")
    lines = said.out.splitlines()
    assert all(len(line) <= 79 for line in lines if "/" not in line), said.out
    assert not re.search(r"\de[+-]\d", said.out)
    assert "\x1b" not in said.out
    assert "nan" not in re.findall(r"\w+", said.out)
    assert all(line == line.rstrip() for line in lines)


def labels(said):
    """Return the labels of the sheet below the table."""
    sheet = said.out.split("\n\n")[-1]
    return [line[:11].strip() for line in sheet.splitlines() if line[:1].isalpha()]


def test_as_a_program_of_its_own(model):
    run = subprocess.run(
        [sys.executable, "-m", "edgechat", "plan", model, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert json.loads(run.stdout)["model"] == "mine"


# What may be typed.


def test_a_path(plan, model):
    said = plan(model, *SMALL)
    sound(said)
    assert labels(said) == ["Machine", "Choice", "Why"]
    assert "Choice     mine F32" in said.out
    assert "not on this machine yet" not in said.out
    assert "exact, by llama.cpp's own allocator" in " ".join(said.out.split())


@pytest.mark.parametrize("name", ["qwen3-8b", "llama-3.1"])
def test_a_name_or_an_alias(plan, name):
    said = plan(name, *SMALL)
    sound(said)
    assert labels(said) == ["Machine", "Choice", "Why", "Or", "Or", "Or", "Or"][: len(labels(said))]
    assert "not on this machine yet" in said.out
    assert "8.0 GiB of RAM, 6.0 GiB free, 50 GB/s" in said.out
    rows = said.out.splitlines()
    assert rows[0].split() == ["QUANT", "SIZE", "CONTEXT", "TOKENS/S", "FIRST", "LOSS", "VERDICT"]
    assert len([row for row in rows if row.startswith("* ")]) == 1
    sizes = [float(row[2:].split()[1]) for row in rows[1 : rows.index("")] if "GiB" in row]
    assert sizes == sorted(sizes, reverse=True)


def test_a_mac_with_mlx(plan):
    """Described from elsewhere: MLX has its GPU, and the sizes are those of its own models."""
    mac = ("--backend", "mlx", "--ram", "16GiB", "--bandwidth", "120GB/s")
    said = plan("qwen3-8b", *mac)
    sound(said)
    rows = said.out.splitlines()
    assert rows[0].split()[:3] == ["QUANT", "BACKEND", "SIZE"]
    assert rows[1].split()[1:3] == ["4bit", "MLX"]
    assert "edgechat pull qwen3-8b --backend mlx" in said.out
    assert "Runs on MLX, as requested, on the GPU (a hypothetical Mac)." in " ".join(said.out.split())
    found = plan("qwen3-8b", *mac, "--json").json
    assert (found["backend"], found["exact"], found["split"]) == ("mlx", False, {"MLX": 37})
    every = plan(*mac, "--json").json
    assert {one["backend"] for one in every} == {"mlx"}
    assert len(every) > 20
    gguf = plan("qwen3-8b", *SMALL, "--backend", "llama.cpp", "--json").json
    assert (gguf["backend"], gguf["quant"]) == ("llama.cpp", "Q4_K_M")


def test_a_backend_that_cannot_be(plan, model):
    said = plan(model, "--backend", "mlx")
    assert said.code == 1
    assert "mine is not an MLX model" in said.err
    assert "omit --backend mlx" in said.err
    both = plan("qwen3-8b", "--backend", "mlx", "--vram", "6GiB")
    assert both.code == 2
    assert "--vram" in both.err


def test_who_drafts(plan, model):
    """Of the catalogue also what is not here yet: pull would bring both."""
    said = plan("qwen3-8b", "--ram", "32GiB", "--vram", "0", "--bandwidth", "50GB/s")
    sound(said)
    assert "Drafts: qwen3-0.6b, " in said.out
    assert "Drafts: n-grams of the conversation." in plan(model, *SMALL).out
    assert "Drafting is off, as requested." in plan(model, *SMALL, "--draft", "none").out
    found = plan("qwen3-8b", "--ram", "32GiB", "--draft", "ngram", "--json").json
    assert (found["draft"], found["ngrams"], found["no_draft"]) == (None, True, None)
    assert found["n_outputs_max"] == found["n_seq_max"] + 15
    both = plan("qwen3-8b", "--ram", "32GiB", "--draft", "qwen3-0.6b", "--json").json
    assert (both["draft"]["model"], both["draft"]["path"]) == ("qwen3-0.6b", None)
    taken = sum(one["total_bytes"] for one in both["devices"])
    assert taken == sum(one["total_bytes"] for one in found["devices"]) + both["draft"]["total_bytes"]


def test_a_state_that_is_too_large_to_be_copied_unasked(plan):
    alone = plan("qwen3.5-4b", *SMALL, "--json").json
    assert (alone["ngrams"], alone["n_rs_seq"]) == (False, 0)
    assert "needed, 50 MiB each. To use them: --draft ngram" in alone["no_draft"]
    asked = plan("qwen3.5-4b", *SMALL, "--draft", "ngram", "--json").json
    assert (asked["ngrams"], asked["n_rs_seq"], asked["no_draft"]) == (True, 3, None)


@pytest.mark.parametrize(
    ("draft", "why"),
    [("qwen3-8b", "it is not smaller"), ("llama-3.2-1b", "128256 tokens"), ("qwen3.5-0.8b", "recurrent")],
)
def test_what_cannot_draft(plan, draft, why):
    said = plan("qwen3-8b", *SMALL, "--draft", draft)
    assert (said.code, said.out) == (1, "")
    assert f"{draft} cannot draft for qwen3-8b: " in said.err
    assert why in said.err


def test_a_typo(plan):
    said = plan("qwen3-8")
    assert (said.code, said.out) == (1, "")
    assert "Did you mean qwen3-8b" in said.err


def test_a_folder(plan, model):
    said = plan(str(Path(model).parent))
    assert (said.code, said.out) == (1, "")
    assert "is a folder" in said.err
    assert "mine.gguf" in said.err


def test_a_damaged_file(plan, tmp_path):
    said = plan(str(corrupt.truncated(tiny(), tmp_path / "a.gguf", keep=-99)))
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("error: ")


def test_several(plan, model):
    said = plan(model, "guide", *SMALL)
    sound(said)
    assert said.out.count("Machine ") == 2
    found = plan(model, "guide", *SMALL, "--json").json
    assert [one["model"] for one in found] == ["mine", "guide"]


def test_the_whole_catalogue(plan):
    said = plan(*SMALL)
    sound(said)
    assert labels(said) == ["Too large", "Machine", "Choice", "Why", "Or", "Or", "Or", "Or"]
    rows = said.out.split("\n\n")[0].splitlines()
    assert rows[0].split() == ["MODEL", "QUANT", "SIZE", "CTX", "TOK/S", "FIRST", "SCORE"]
    assert rows[1].startswith("* ")
    assert not [row for row in rows[2:] if row.startswith("*")]
    named = re.findall(r"^[ *] (\S+) +[A-Z0-9_]+ ", "\n".join(rows[1:]), re.MULTILINE)
    assert len(named) > 20
    assert "llama-3.3-70b" not in named
    assert "llama-3.3-70b" in said.out


def test_with_a_card_that_is_not_here(plan):
    said = plan("--ram", "16GiB", "--vram", "8GiB", "--bandwidth", "50GB/s")
    sound(said)
    assert "GPU" in said.out.splitlines()[0]
    assert "100%" not in said.out.splitlines()[1]  # something is always in RAM
    assert "a hypothetical GPU: 8.0 GiB" in said.out


# A repository on the hub.


REPO = "owner/tiny-GGUF"


def fill(hub):
    files = {f"tiny-{quant}.gguf": tiny(weights=quant) for quant in ("F16", "Q8_0", "Q4_0")}
    hub.add(REPO, {**files, "README.md": b"# tiny"})


def test_a_repository(plan, hub):
    fill(hub)
    said = plan(REPO, *SMALL)
    sound(said)
    assert [row.split()[0] for row in said.out.splitlines()[1:4]] != []
    assert {"F16", "Q8_0", "Q4_0"} <= set(said.out.split())
    assert "not on this machine yet" in said.out
    assert {one.method for one in hub.seen} <= {"GET", "HEAD"}
    found = plan(REPO, *SMALL, "--json").json
    assert found["model"] == REPO
    assert found["path"] is None
    assert found["exact"] is True


def test_of_many_files_few_are_read_and_that_is_said(plan, hub):
    quants = ("F16", "Q8_0", "Q4_0", "F32")
    files = {f"tiny-{quant}.gguf": tiny(weights=quant) for quant in quants}
    files |= {
        "tiny-Q6_K.gguf": tiny(weights="Q8_0", seed=2),
        "tiny-Q5_K_M.gguf": tiny(weights="Q8_0", seed=3),
    }
    hub.add(REPO, files)
    said = plan(REPO, *SMALL)
    sound(said)
    assert "3 more files in the repository" in " ".join(said.out.split())


def test_a_repository_whose_files_are_no_models(plan, hub):
    hub.add(REPO, {"a-Q4_K_M.gguf": b"GGUF" + bytes(100), "a-Q8_0.gguf": b"<html>"})
    said = plan(REPO, *SMALL)
    assert (said.code, said.out) == (1, "")
    assert "cannot read any of the 2 models" in said.err


def test_a_repository_that_is_not_there(plan, hub):
    said = plan("owner/none")
    assert (said.code, said.out) == (1, "")
    assert "owner/none" in said.err


def test_a_hub_in_trouble(plan, hub):
    fill(hub)
    hub.fail("api", Fault(status=503))
    said = plan(REPO)
    assert (said.code, said.out) == (1, "")
    assert len(said.err.splitlines()) == 2


def test_offline(plan, hub, model):
    fill(hub)
    said = plan(REPO, "--offline")
    assert (said.code, said.out) == (1, "")
    assert "offline" in said.err
    assert hub.seen == []
    sound(plan(model, "--offline", *SMALL))


# Wishes, and what cannot be.


def test_nothing_fits(plan):
    said = plan("qwen3-8b", "--ram", "4GiB", "--vram", "0", "--bandwidth", "50GB/s")
    sound(said, 1)
    assert labels(said) == ["Machine", "Choice", "Instead"]
    assert "None of these fit. qwen3-8b with a context of 2048" in " ".join(said.out.split())
    named = re.findall(r"edgechat plan (\S+)", said.out)
    assert plan(named[0], "--ram", "4GiB", "--vram", "0", "--bandwidth", "50GB/s").code == 0
    found = plan("qwen3-8b", "--ram", "4GiB", "--vram", "0", "--bandwidth", "50GB/s", "--json")
    assert found.code == 1
    assert set(found.json) == {"model", "backend", "quant", "file_bytes", "verdict", "why_not"}
    assert found.json["verdict"] == "too large"


def test_nothing_at_all_fits(plan):
    said = plan("--ram", "64MiB", "--vram", "0", "--bandwidth", "50GB/s")
    sound(said, 1)
    assert labels(said) == ["Too large", "Machine", "Choice", "Instead"]
    assert "edgechat run guide" in said.out
    found = plan("--ram", "64MiB", "--vram", "0", "--bandwidth", "50GB/s", "--json")
    assert found.code == 1
    assert {one["verdict"] for one in found.json} == {"too large"}


def test_a_context_beyond_training(plan):
    said = plan("qwen3-0.6b", *SMALL, "--ctx", "100000")
    sound(said)
    words = " ".join(said.out.split())
    assert "The context is 40960 tokens instead of 100000" in words
    assert "Context 40960" in words
    assert "Context 40960: the model's full context length" in words
    found = plan("qwen3-0.6b", *SMALL, "--ctx", "100000", "--json").json
    assert (found["context"], found["verdict"]) == (40960, "short")


def test_wishes(plan):
    found = plan(
        "qwen3-8b", "--ram", "32GiB", "--vram", "0", "--bandwidth", "50GB/s", "--ctx", "20000", "--json"
    )
    assert found.json["context"] == 20224
    found = plan("qwen3-0.6b", *SMALL, "--quality", "near lossless", "--json")
    assert found.json["quant"] in ("Q6_K", "Q8_0")
    found = plan("qwen3-8b", *SMALL, "--min-tps", "100", "--json")
    assert (found.code, found.json["verdict"]) == (0, "slow")
    assert "nothing that fits generates 100 tokens/s" in found.json["reasons"][0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--ram", "8"), "has no unit; for example: 8GiB"),
        (("--ram", "lots"), "is not an amount of memory; write 8GiB"),
        (("--ram=-1GiB",), "is not an amount of memory"),
        (("--vram", "9999999999TiB"), "is not an amount of memory"),
        (("--ram", "1e99GiB"), "is not an amount of memory"),
        (("--bandwidth", "50"), "has no unit; for example: 50GB/s"),
        (("--bandwidth", "50GB/h"), "is not an amount of bytes per second; for example: 50GB/s"),
        (("--bandwidth", "1kB/s"), "is too slow"),
        (("--quality", "best"), "is not one of poor, reduced, good"),
        (("--ctx", "0"), "greater than or equal to 1"),
        (("--min-tps", "-1"), "greater than or equal to 0"),
    ],
)
def test_nonsense(plan, words, says):
    said = plan("guide", *words)
    assert (said.code, said.out) == (2, "")
    assert says in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("text", "n"),
    [("8GiB", 8 * GIB), ("8g", 8 * GIB), ("8 GB", 8 * GIB), ("6144 MiB", 6 * GIB), ("0", 0), (None, None)],
)
def test_amounts(text, n):
    assert amount("--ram", text) == n


def test_rates_and_quality_class():
    assert rate("50GB/s") == rate("50 gb") == 50e9
    assert rate("1GiB/s") == GIB
    assert rate(None) is None
    assert quality_class("Near-Lossless") is QualityClass.NEAR_LOSSLESS
    with pytest.raises(click.BadParameter):
        quality_class("")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1141.3, "1141"),
        (99999.0, "99999"),
        (999.6, "1000"),
        (8.368, "8.37"),
        (0.02815, "0.0282"),
        (40.0, "40"),
    ],
)
def test_numbers_have_no_exponent(value, text):
    assert figure(value) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [(0.04, "0.0 s"), (5.26, "5.3 s"), (9.96, "10 s"), (99.4, "99 s"), (100, "2 min"), (9000, "2 h")],
)
def test_times(n, text):
    assert seconds(n) == text


# For programs.

NUMBER = (int, float)
SCHEMA = {
    "model": str,
    "path": (str, type(None)),
    "backend": str,
    "quant": (str, type(None)),
    "file_bytes": int,
    "context": int,
    "cache_type": str,
    "threads": int,
    "gpu_layers": int,
    "n_layers": int,
    "split": dict,
    "experts_in_ram": int,
    "n_batch": int,
    "n_ubatch": int,
    "n_seq_max": int,
    "n_outputs_max": int,
    "n_rs_seq": int,
    "flash_attention": bool,
    "devices": [
        dict.fromkeys(
            (
                "budget_bytes",
                "weights_bytes",
                "cache_bytes",
                "compute_bytes",
                "program_bytes",
                "checkpoint_bytes",
                "projector_bytes",
                "adapter_bytes",
                "total_bytes",
            ),
            int,
        )
        | {"name": str}
    ],
    "exact": bool,
    "draft": (dict, type(None)),
    "mtp": (dict, type(None)),
    "drafters": [str],
    "projector": (dict, type(None)),
    "adapters": [dict],
    "remote": (dict, type(None)),
    "program": (dict, type(None)),
    "no_vision": (str, type(None)),
    "ngrams": bool,
    "no_draft": (str, type(None)),
    "predicted": {
        "decode_tps": NUMBER,
        "prompt_tps": NUMBER,
        "ttft_ms": NUMBER,
        "basis": str,
        "by_depth": [{"depth": int, "decode_tps": NUMBER, "prompt_tps": NUMBER}],
    },
    "kl_divergence": {"value": NUMBER, "source": str, "measured": bool},
    "notes": [str],
    "reasons": [str],
    "alternatives": [
        {
            "model": str,
            "backend": str,
            "quant": (str, type(None)),
            "context": int,
            "decode_tps": NUMBER,
            "why_not": str,
        }
    ],
    "verdict": str,
}


def conform(value, schema, where=""):
    """Assert that a value is what the schema says, without anything more."""
    if isinstance(schema, list):
        assert isinstance(value, list), where
        for number, one in enumerate(value):
            conform(one, schema[0], f"{where}[{number}]")
    elif isinstance(schema, dict):
        assert isinstance(value, dict), where
        assert set(value) == set(schema), where
        for name, kind in schema.items():
            conform(value[name], kind, f"{where}.{name}")
    else:
        assert isinstance(value, schema), (where, value)
        assert not isinstance(value, float) or math.isfinite(value), where


@pytest.mark.parametrize("words", [("qwen3-8b",), ("qwen3.6-35b-a3b", "--vram", "24GiB"), ("guide",)])
def test_the_object(plan, words):
    said = plan("--ram", "64GiB", *words, "--bandwidth", "50GB/s", "--json")
    assert (said.code, said.err) == (0, "")
    found = said.json
    conform(found, SCHEMA)
    assert found["verdict"] in ("fits", "slow", "too lossy", "short")
    assert sum(found["split"].values()) == found["gpu_layers"] <= found["n_layers"] + 1
    for one in found["devices"]:
        assert one["total_bytes"] == sum(
            one[f"{what}_bytes"] for what in ("weights", "cache", "compute", "program", "checkpoint")
        )
        assert one["total_bytes"] <= one["budget_bytes"]


def test_the_list(plan):
    found = plan(*SMALL, "--json").json
    assert len(found) > 30
    for one in found:
        if one["verdict"] == "too large":
            assert set(one) == {"model", "backend", "quant", "file_bytes", "verdict", "why_not"}
        else:
            conform(
                {
                    **one,
                    "kl_divergence": one["kl_divergence"] or {"value": 0, "source": "", "measured": False},
                },
                SCHEMA,
            )
    assert [one["exact"] for one in found if "exact" in one][:6] == [True] * 5 + [False]
    order = [("fits", "slow", "too lossy", "short", "too large").index(one["verdict"]) for one in found]
    assert order == sorted(order)


def test_the_docstring_says_what_there_is():
    said = command.__doc__ or ""
    for name in SCHEMA:
        assert re.search(rf"\b{name}\b", said), name
    for name in ("fits", "slow", "too lossy", "short", "too large", "why_not", "file_bytes"):
        assert name in said


def test_settings_count_as_they_do_for_a_load(plan, model):
    settings_file().write_text("context = 512\nthreads = 1\n", encoding="utf-8")
    found = plan(model, "--json", *SMALL).json
    assert (found["context"], found["threads"]) == (512, 1)
    assert plan(model, "--ctx", "256", "--json", *SMALL).json["context"] == 256
