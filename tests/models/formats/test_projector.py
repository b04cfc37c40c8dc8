"""The headers of projectors: what they say, and what is refused before libmtmd sees it."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.base.errors import ModelFileError
from edgechat.models.formats.gguf import read_model
from edgechat.models.formats.header import GgufArray
from edgechat.models.formats.projector import MAX_IMAGE, VISION_TYPES, projector_of, read_projector
from edgechat.planner.companions import compute_bytes, host_bytes, largest_picture
from tests.kit import tiny
from tests.kit.projector_files import projector
from tests.properties import examples


def test_one_that_sees():
    found = read_projector(projector("gemma3", image_size=896, patch_size=14, n_layers=27))
    assert found.modalities == ("vision",)
    assert found.audio is None
    assert found.vision is not None
    assert (found.vision.type, found.vision.n_layers) == ("gemma3", 27)
    assert (found.vision.image_size, found.vision.patch_size) == (896, 14)
    assert found.header.weights_bytes == 2 * (64 * 32 + 32 * 64)


def test_one_that_sees_and_hears_and_one_that_only_hears():
    both = read_projector(projector("gemma4v", "gemma4a"))
    assert both.modalities == ("vision", "audio")
    assert (both.vision and both.vision.type, both.audio and both.audio.type) == ("gemma4v", "gemma4a")
    assert read_projector(projector("", "ultravox")).modalities == ("audio",)
    # Its file has an encoder for sound that libmtmd does not load.
    assert read_projector(projector("gemma3nv", "gemma3na")).modalities == ("vision",)


def test_it_fits_models_with_embeddings_of_its_width():
    model = read_model(tiny("dense"))
    assert read_projector(projector(width=64)).misfit(model) == ""
    assert "128 channels, but the model's have 64" in read_projector(projector(width=128)).misfit(model)
    # Files from before 2025 state the width of CLIP's own projection.
    old = {"clip.vision.projection_dim": 768}
    assert read_projector(projector("mlp", overrides=old)).misfit(model) == ""


def test_a_model_is_no_projector_and_the_reverse():
    with pytest.raises(ModelFileError, match="is not a projector"):
        read_projector(tiny("dense"))
    with pytest.raises(ModelFileError, match="a vision projector, not a model"):
        read_model(projector())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"clip.has_vision_encoder": None}, "neither images nor audio"),
        ({"clip.has_vision_encoder": 1}, "'uint32', not bool"),
        ({"clip.vision.patch_size": -16}, "'int32', not uint32"),
        ({"clip.vision.num_mel_bins": 80.0}, "'float32', not uint32"),
        ({"clip.use_gelu": "yes"}, "'string', not bool"),
        ({"clip.vision.projector.scale_factor": [2]}, "'array', not uint32"),
        ({"general.name": 7}, "'uint32', not string"),
        ({"clip.projector_type": None}, "does not know: 'none'"),
        ({"clip.projector_type": "\x1b[31mnext"}, r"does not know: '\\x1b\[31mnext'"),
        ({"clip.projector_type": "gemma4a"}, "does not know"),
        ({"clip.vision.patch_size": 0}, "is 0, not between 1 and"),
        ({"clip.vision.patch_size": None}, "no valid number for 'clip.vision.patch_size'"),
        ({"clip.vision.patch_size": 4000}, "too large"),
        ({"clip.vision.image_size": 8}, "not between 16 and"),
        ({"clip.vision.image_size": 2**31 - 1}, "not between"),
        ({"clip.vision.image_size": "large"}, "'string', not uint32"),
        ({"clip.vision.block_count": 513}, "not between 0 and 512"),
        ({"clip.vision.embedding_length": 2**31 - 1}, "not between"),
        ({"clip.vision.attention.head_count": 33}, "not between 0 and 32"),
        ({"clip.vision.projection_dim": 2**31}, "no valid number"),
        ({"clip.vision.image_mean": [0.5, 0.5]}, "not a list of three"),
        ({"clip.vision.image_std": [0.5, 0.5, math.nan]}, "not a list of three"),
        ({"clip.vision.image_std": None}, "not a list of three"),
    ],
)
def test_refused(changes, says):
    with pytest.raises(ModelFileError, match=says):
        read_projector(projector(overrides=changes))


_KEYS = [
    "has_vision_encoder",
    "has_audio_encoder",
    "projector_type",
    "vision.projector_type",
    "audio.projector_type",
    *(f"{name}.{key}" for name in ("vision", "audio") for key in (
        "embedding_length", "feed_forward_length", "block_count", "projection_dim", "attention.head_count",
        "image_size", "patch_size", "image_mean", "spatial_merge_size", "projector.scale_factor",
        "image_max_pixels", "preproc_image_size", "preproc_max_tiles",
    )),
]  # fmt: skip
_NUMBERS = st.sampled_from([0, 1, 2, 14, 64, 896, 2**14, 2**20, 2**28, 2**31 - 1, 2**31, 2**63])
_VALUES = _NUMBERS | st.sampled_from([True, -1, 0.5, math.inf, "", "gemma4uv", GgufArray("uint32", 9, None)])
_TYPES = st.sampled_from(sorted(VISION_TYPES))


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(_TYPES, st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=6), st.integers(1, 2**20))
def test_whatever_a_header_says_it_is_planned_or_refused(kind, changes, context):
    sound = read_projector(projector(kind, "gemma4a")).header
    metadata = sound.metadata | {f"clip.{key}": value for key, value in changes.items()}
    try:
        found = projector_of(replace(sound, metadata=metadata))
        found.misfit(read_model(tiny("dense")))
    except ModelFileError:
        return
    picture = largest_picture(found, 64, context)
    assert 0 <= picture.whole <= picture.tokens
    assert picture.tokens <= max(context, MAX_IMAGE**2)
    assert 0 <= compute_bytes(found, picture, on_cpu=True) < 2**63
    assert 0 <= host_bytes(picture, 64) < 2**63


def test_a_cut_file(tmp_path):
    path = tmp_path / "mmproj.gguf"
    path.write_bytes(projector().read_bytes()[:-1])
    with pytest.raises(ModelFileError, match="truncated"):
        read_projector(path)
