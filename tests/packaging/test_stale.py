"""`make catalogue`: which entries were not looked at for long, and which are not what the hub says."""

import sys
from datetime import date
from pathlib import Path

import pytest

from tests.hub import Fault

FOLDER = str(Path(__file__).parents[2] / "packaging" / "catalogue")
TODAY = date(2026, 11, 28)
ENTRY = """
[[model]]
name = "{name}"
description = "A tiny model."
licence = "LFM-1.0"
repo = "someone/{name}-GGUF"
file = "Tiny-{{quant}}.gguf"
quants = ["Q4_0", "Q8_0"]
quant = "Q8_0"
context = 2048
thinking = "default-on"
{more}
"""
FILES = {"Tiny-Q4_0.gguf": b"", "Tiny-Q8_0.gguf": b""}
SAID = {
    "cardData": {"license": "other", "license_name": "lfm1.0"},
    "gguf": {"context_length": 2048, "chat_template": "{% if enable_thinking %}"},
}


@pytest.fixture
def look(monkeypatch, tmp_path, capsys):
    """A function that runs the script over a catalogue, and returns its lines and exit code."""
    monkeypatch.syspath_prepend(FOLDER)
    import stale

    path = tmp_path / "models.toml"
    monkeypatch.setattr(stale, "CATALOGUE", path)

    def run(*entries, words=()):
        text = [ENTRY.format(name=name, more=more) for name, more in entries]
        path.write_text("\n".join(text), encoding="utf-8")
        with pytest.raises(SystemExit) as ended:
            stale.main(words, today=TODAY)
        return capsys.readouterr().out.splitlines(), int(ended.value.code)

    yield run
    sys.modules.pop("stale", None)


FRESH = ("tiny", "checked = 2026-10-01")


def test_nothing_to_do(hub, look):
    hub.add("someone/tiny-GGUF", FILES, **SAID)
    assert look(FRESH) == (["1 entries, 0 things to look at."], 0)


def test_offline_the_old_ones_are_named(hub, look, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    old, never = ("old", "checked = 2026-09-28"), ("never", "")
    said, code = look(FRESH, old, never)
    assert said == [
        "old was looked at 61 days ago, on 2026-09-28.",
        "never was never looked at.",
        "The hub was asked about 0 of 3 entries only: HF_HUB_OFFLINE is set.",
        "3 entries, 2 things to look at.",
    ]
    assert code == 1
    assert hub.seen == []
    assert look(FRESH, old, words=["--days", "61"])[1] == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cardData": {"license": "mit"}}, "has the licence LFM-1.0, its repository mit."),
        ({"gated": "auto"}, "has gated = false, its repository auto."),
        ({"gguf": {"context_length": 4096}}, "has a context of 2048, its files of 4096."),
        ({"gguf": {"chat_template": "{{ x }}"}}, "has thinking = default-on, its template no switch."),
        ({"gguf": None, "cardData": None}, None),
    ],
)
def test_what_the_hub_says_otherwise(hub, look, change, said):
    hub.add("someone/tiny-GGUF", FILES, **SAID | change)
    assert look(FRESH)[0][:-1] == ([f"tiny {said}"] if said else [])


def test_files_and_repositories_that_are_not_there(hub, look):
    hub.add("someone/tiny-GGUF", {"Q4/Tiny-Q4_0-00001-of-00002.gguf": b""}, **SAID)
    said, code = look(("tiny", 'checked = 2026-11-28\nmlx = { 4bit = "someone/tiny-4bit" }'), ("gone", ""))
    assert said == [
        "tiny names Tiny-Q4_0.gguf, which is only in parts in someone/tiny-GGUF.",
        "tiny names Tiny-Q8_0.gguf, which is not in someone/tiny-GGUF.",
        "tiny has an MLX repository that is not there: someone/tiny-4bit.",
        "gone was never looked at.",
        "gone has a repository that is not there: someone/gone-GGUF.",
        "2 entries, 5 things to look at.",
    ]
    assert code == 1


@pytest.mark.parametrize("fault", [Fault(drop=True), Fault(status=429), Fault(status=500), Fault(wait=30)])
def test_a_hub_that_does_not_answer_is_asked_once(hub, look, monkeypatch, fault):
    monkeypatch.setattr("stale.PATIENCE", 0.5)
    hub.add("someone/tiny-GGUF", FILES, **SAID)
    hub.fail("api", fault)
    said, code = look(FRESH, ("other", "checked = 2026-11-01"))
    assert said[0].startswith("The hub was asked about 0 of 2 entries only: ")
    assert (len(said), code) == (2, 0)
    hub.mend()
