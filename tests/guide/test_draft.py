"""The draft that comes with the guide: small, of the guide's tokens, and mostly right about what it says."""

import gguf
import pytest

from edgechat.models.formats.gguf import read_model
from edgechat.models.local.resolve import resolve

pytestmark = pytest.mark.slow


def test_it_has_the_guides_tokens():
    guide, draft = (
        {key: field.contents() for key, field in gguf.GGUFReader(resolve(name).path).fields.items()}
        for name in ("guide", "guide-draft")
    )
    keys = {key for key in guide if key.startswith("tokenizer.")}
    assert len(guide["tokenizer.ggml.tokens"]) == 8192
    assert keys == {key for key in draft if key.startswith("tokenizer.")}
    assert all(guide[key] == draft[key] for key in keys)


def test_it_is_small():
    guide, draft = (read_model(resolve(name).path) for name in ("guide", "guide-draft"))
    assert draft.file_size < 1_000_000
    assert draft.n_params * 5 < guide.n_params


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.soak)])
def test_it_foresees_most_of_what_the_guide_says(module, step):
    load, exam = module("evaluate").load, module("exam")
    guide, draft = load(resolve("guide").path), load(resolve("guide-draft").path, every=True)
    found = module("agreement").agreement(guide, draft, exam.exam("held_out")[::step])
    assert len(found.answers) > 200 // step
    assert found.share > 0.94
    assert found.acceptance(4) > 0.6
    assert found.acceptance(16) > 0.6


def test_what_agreement_counts(module):
    found = module("agreement").Agreement(((True, True, True, False, True), (False, True)))
    assert found.share == pytest.approx(5 / 7)
    assert found.stretch == pytest.approx(5 / 3)
    assert found.per_call(8) == pytest.approx(5 / 3)
    assert found.per_call(1) == pytest.approx(5 / 4)
    assert found.acceptance(8) == pytest.approx(4 / 6)
    assert found.acceptance(1) == pytest.approx(3 / 4)
