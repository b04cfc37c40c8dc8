"""`edgechat list`, `show`, `rm`, `import` and `verify` of MLX models."""

import json
import re

import pytest

from edgechat.models.local import locations
from tests.cli.running import edgechat
from tests.models.mlx_folders import mlx_files, written

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured", "user")]


def said(*words, code=0):
    run = edgechat(*words)
    assert run.returncode == code, run
    return run.stdout + run.stderr


def test_listing_and_showing():
    folder = written(locations.own_folder() / "mine", mlx_files(n_files=2))
    (line,) = [line for line in said("list").splitlines() if line.startswith("mine")]
    assert line.split()[1:3] == ["4bit", "MLX"]
    assert "4096" in line
    (one,) = [one for one in json.loads(said("list", "--json")) if one["name"] == "mine"]
    assert (one["format"], one["quant"], one["architecture"]) == ("mlx", "4bit", "qwen3")
    assert (one["path"], one["damage"]) == (str(folder), None)
    assert len(one["files"]) == 6
    sheet = said("show", "mine")
    assert "4bit for MLX, 4.5 bits per weight" in sheet
    assert str(folder / "model-00002-of-00002.safetensors") in sheet
    shown = json.loads(said("show", folder, "--json"))
    assert (shown["format"], shown["quant"], shown["template"]) == ("mlx", "4bit", True)


def test_what_becomes_of_one(user):
    source = written(user / "Tiny-8bit", mlx_files(bits=8))
    assert "Chat with it: edgechat run Tiny-8bit" in said("import", source)
    text = said("verify", "Tiny-8bit")
    assert re.match(r"ok       Tiny-8bit: \d+ KiB, header and size are valid", text)
    damaged = locations.own_folder() / "Tiny-8bit" / "tokenizer.json"
    damaged.unlink()
    assert "Tiny-8bit" not in said("list")
    damaged.write_bytes(b"{}")
    assert "Removed." in said("rm", "--yes", "Tiny-8bit")
    assert not damaged.parent.exists()
    assert source.exists()


def test_damage_is_told():
    folder = written(locations.own_folder() / "mine", mlx_files())
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    weights.unlink()
    weights.write_bytes(data[:-10])
    assert "damaged" in said("list")
    assert "DAMAGED  mine: model.safetensors is not valid: it is truncated" in said("verify", code=1)
    assert "model.safetensors is not valid" in said("show", "mine", code=1)


def test_a_folder_that_was_meant_to_be_run(user):
    folder = written(user / "Tiny-4bit", mlx_files())
    assert f"Did you mean: edgechat --model {folder}" in said(folder, code=2)
