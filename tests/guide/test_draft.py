"""The draft that comes with the guide: small, of the guide's tokens, and mostly right about what it says."""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import pytest

from edgechat.models.gguf import read_model
from edgechat.models.library import resolve

GUIDE = Path(__file__).parents[2] / "packaging" / "guide"


@pytest.fixture(scope="module")
def evaluate():
    """The module `evaluate`, which lies outside the package."""
    sys.path.insert(0, str(GUIDE))
    try:
        import evaluate
    finally:
        sys.path.remove(str(GUIDE))
    return evaluate


def test_it_has_the_guides_tokens() -> None:
    guide, draft = (
        {key: field.contents() for key, field in gguf.GGUFReader(resolve(name).path).fields.items()}
        for name in ("guide", "guide-draft")
    )
    keys = {key for key in guide if key.startswith("tokenizer.")}
    assert len(guide["tokenizer.ggml.tokens"]) == 2048
    assert keys == {key for key in draft if key.startswith("tokenizer.")}
    assert all(guide[key] == draft[key] for key in keys)


def test_it_is_small() -> None:
    guide, draft = (read_model(resolve(name).path) for name in ("guide", "guide-draft"))
    assert draft.file_size < 400_000
    assert draft.n_params * 10 < guide.n_params


def test_it_foresees_most_of_what_the_guide_says(evaluate) -> None:
    guide = evaluate.load(resolve("guide").path)
    draft = evaluate.load(resolve("guide-draft").path, every=True)
    found = evaluate.agreement(guide, draft, evaluate.held_out_cases())
    assert len(found.answers) > 200
    assert found.share > 0.97
    assert found.per_call(8) > 6.5


def test_what_agreement_counts(evaluate) -> None:
    found = evaluate.Agreement(((True, True, True, False, True), (False, True)))
    assert found.share == pytest.approx(5 / 7)
    assert found.stretch == pytest.approx(5 / 3)
    assert found.per_call(8) == pytest.approx(5 / 3)
    assert found.per_call(1) == pytest.approx(5 / 4)
