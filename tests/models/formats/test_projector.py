"""The headers of projectors: what they say, and what is refused before libmtmd sees it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from edgechat.base.errors import ModelFileError
from edgechat.models.formats.gguf import read_model
from edgechat.models.formats.projector import read_projector
from tests.kit import tiny
from tests.kit.projector_files import projector


def test_one_that_sees() -> None:
    found = read_projector(projector("gemma3", image_size=896, patch_size=14, n_layers=27))
    assert found.modalities == ("vision",)
    assert found.audio is None
    assert found.vision is not None
    assert (found.vision.type, found.vision.n_layers) == ("gemma3", 27)
    assert (found.vision.image_size, found.vision.patch_size) == (896, 14)
    assert found.header.weights_bytes == 2 * (64 * 32 + 32 * 64)


def test_one_that_sees_and_hears_and_one_that_only_hears() -> None:
    both = read_projector(projector("gemma4v", "gemma4a"))
    assert both.modalities == ("vision", "audio")
    assert (both.vision and both.vision.type, both.audio and both.audio.type) == ("gemma4v", "gemma4a")
    assert read_projector(projector("", "ultravox")).modalities == ("audio",)
    # Its file has an encoder for sound that libmtmd does not load.
    assert read_projector(projector("gemma3nv", "gemma3na")).modalities == ("vision",)


def test_it_fits_models_with_embeddings_of_its_width() -> None:
    model = read_model(tiny("dense"))
    assert read_projector(projector(width=64)).misfit(model) == ""
    assert "128 channels, and the model has 64" in read_projector(projector(width=128)).misfit(model)
    # Files from before 2025 state the width of CLIP's own projection.
    old = {"clip.vision.projection_dim": 768}
    assert read_projector(projector("mlp", overrides=old)).misfit(model) == ""


def test_a_model_is_no_projector_and_the_reverse() -> None:
    with pytest.raises(ModelFileError, match="is not a projector"):
        read_projector(tiny("dense"))
    with pytest.raises(ModelFileError, match="a vision projector, not a model"):
        read_model(projector())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"clip.has_vision_encoder": None}, "neither pictures nor sound"),
        ({"clip.has_vision_encoder": 1}, "neither pictures nor sound"),
        ({"clip.projector_type": None}, "does not know: 'none'"),
        ({"clip.projector_type": "\x1b[31mnext"}, r"does not know: '\\x1b\[31mnext'"),
        ({"clip.projector_type": "gemma4a"}, "does not know"),
        ({"clip.vision.patch_size": 0}, "is 0, not between 1 and"),
        ({"clip.vision.patch_size": None}, "no valid number for 'clip.vision.patch_size'"),
        ({"clip.vision.patch_size": 4000}, "too large"),
        ({"clip.vision.image_size": 8}, "not between 16 and"),
        ({"clip.vision.image_size": 2**31 - 1}, "not between"),
        ({"clip.vision.image_size": "large"}, "no valid number"),
        ({"clip.vision.block_count": 513}, "not between 0 and 512"),
        ({"clip.vision.embedding_length": 2**31 - 1}, "not between"),
        ({"clip.vision.attention.head_count": 33}, "not between 0 and 32"),
        ({"clip.vision.projection_dim": 2**31}, "no valid number"),
        ({"clip.vision.image_mean": [0.5, 0.5]}, "no list of three"),
        ({"clip.vision.image_std": [0.5, 0.5, math.nan]}, "no list of three"),
        ({"clip.vision.image_std": None}, "no list of three"),
    ],
)
def test_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelFileError, match=says):
        read_projector(projector(overrides=changes))


def test_a_cut_file(tmp_path: Path) -> None:
    path = tmp_path / "mmproj.gguf"
    path.write_bytes(projector().read_bytes()[:-1])
    with pytest.raises(ModelFileError, match="truncated"):
        read_projector(path)
