from __future__ import annotations

from pathlib import Path

import pytest

from edgechat.errors import SettingsError
from edgechat.models.catalogue import catalogue, read_catalogue

GOOD = """
[[model]]
name = "tiny"
aliases = ["small"]
description = "A tiny model."
licence = "MIT"
repo = "someone/tiny-GGUF"
file = "Tiny-{quant}.gguf"
quant = "Q8_0"
[model.sampling]
temperature = 0.7
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "models.toml"
    path.write_text(text)
    return path


def test_the_shipped_catalogue_is_sound() -> None:
    entries = {entry.name: entry for entry in catalogue()}
    assert entries["guide"].repo is None
    assert entries["qwen3-4b"].file_name == "Qwen3-4B-Instruct-2507-Q4_K_M.gguf"
    assert entries["qwen3-4b"].sampling.given() == {
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 20,
        "min_p": 0.0,
    }
    assert all(entry.repo and entry.repo.count("/") == 1 for entry in catalogue() if entry.name != "guide")


def test_an_entry(tmp_path: Path) -> None:
    (entry,) = read_catalogue(write(tmp_path, GOOD))
    assert entry.names == ("tiny", "small")
    assert (entry.file_name, entry.file_for("q4_K_m")) == ("Tiny-Q8_0.gguf", "Tiny-q4_K_m.gguf")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("licence", "license", "no field license"),
        ('licence = "MIT"', "", "licence is missing"),
        ('"Q8_0"', "8", "quant = 8"),
        ('["small"]', '"small"', "aliases = 'small'"),
        ("0.7", "-1", "sampling.temperature = -1"),
        ("temperature", "temprature", "no field sampling.temprature"),
        ('"tiny"', '"Tiny"', "must be lower case"),
        ('"tiny"', '"a/b"', "without slashes"),
        ('"small"', '"tiny"', "names both tiny and tiny"),
        ("Tiny-{quant}.gguf", "Tiny.gguf", "{quant}"),
        ("Tiny-", "../Tiny-", "not a path"),
        ("[[model]]", "[[models]]", "only [[model]]"),
        ("[[model]]", "[model]", "only [[model]]"),
    ],
)
def test_mistakes_name_the_file_and_the_field(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(SettingsError) as caught:
        read_catalogue(path)
    assert str(path) in caught.value.message
    assert said in caught.value.message


def test_a_mistake_names_the_model(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + '[[model]]\nname = "other"\n')
    with pytest.raises(SettingsError, match=r"model 2 \(other\)"):
        read_catalogue(path)


def test_two_models_of_one_name(tmp_path: Path) -> None:
    other = GOOD.replace('"tiny"', '"other"')
    with pytest.raises(SettingsError, match="'small' names both tiny and other"):
        read_catalogue(write(tmp_path, GOOD + other))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        read_catalogue(tmp_path / "models.toml")
