"""Header of a projector: a file that accompanies a language model and encodes images or audio for it.

A projector contains an encoder for each kind of input, and a projection from the encoder's output to the
model's embeddings. It is run by libmtmd, whose loader (tools/mtmd/clip.cpp) aborts on implausible numbers, so
the keys are checked here first. An MLX model has a vision tower in its folder instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from edgechat.base.errors import ModelFileError
from edgechat.models.formats.gguf import read_header
from edgechat.models.formats.header import (
    MAX_LAYERS,
    GgufArray,
    Modality,
    ModelHeader,
    Value,
    modalities,
    show,
    unsound,
)
from edgechat.models.formats.mlx.vision import KIND, MAX_IMAGE, MAX_WIDTH, PROBLEM, TOWERS

ARCHITECTURE = "clip"

_LIMITS = {
    "spatial_merge_size": 64,
    "projector.scale_factor": 64,
    "image_min_pixels": MAX_IMAGE**2,
    "image_max_pixels": MAX_IMAGE**2,
    "preproc_image_size": MAX_IMAGE,
    "preproc_max_tiles": 256,
}
"""Upper limits for optional image parameters, none of which may be 0."""

VISION_TYPES = frozenset(
    {
        "adapter",
        "cogvlm",
        "deepseek4v",
        "deepseekocr",
        "deepseekocr2",
        "dots3note_v",
        "dots_ocr",
        "exaone4_5",
        "gemma3",
        "gemma3nv",
        "gemma4uv",
        "gemma4v",
        "glm4v",
        "glm5v",
        "granite4_vision",
        "hunyuanvl",
        "idefics3",
        "internvl",
        "janus_pro",
        "kimik25",
        "kimivl",
        "ldp",
        "ldpv2",
        "lfm2",
        "lightonocr",
        "ling3vl",
        "llama4",
        "mimovl",
        "minicpmv4_6",
        "minimax_m3",
        "mlp",
        "muse-glimmer",
        "nemotron_v2_vl",
        "paddleocr",
        "phi4",
        "pixtral",
        "qwen2.5o",
        "qwen2.5vl_merger",
        "qwen2vl_merger",
        "qwen3vl_merger",
        "resampler",
        "step3vl",
        "yasa2",
        "youtuvl",
    }
)
AUDIO_TYPES = frozenset(
    {
        "dots3note_a",
        "gemma3na",
        "gemma4a",
        "gemma4ua",
        "glma",
        "granite_speech",
        "lfm2a",
        "meralion",
        "mimo_audio",
        "musicflamingo",
        "parakeet",
        "qwen2.5o",
        "qwen2a",
        "qwen3a",
        "ultravox",
        "voxtral",
    }
)
"""Projector types supported by this llama.cpp (tools/mtmd/clip-impl.h), except speech synthesis."""
_COUNTS = """
    attention.head_count attention.head_count_kv attention.head_dim block_count chunk_size conv_kernel_size
    embedding_length expert_used_count feed_forward_length image_max_pixels image_min_pixels image_size
    local_block_count local_group_size max_pos_emb n_wa_pattern num_mel_bins patch_size preproc_image_size
    preproc_max_tiles preproc_min_tiles projection_dim projector.downsample_rate projector.head_count
    projector.query_side projector.scale_factor projector.stack_factor projector.window_side
    projector.window_size rvq.num_quantizers sam.block_count sam.embedding_length sam.head_count
    spatial_merge_size subsampling_factor window_size
"""
_READ_AS = {
    **{f"clip.{name}.{key}": "uint32" for name in ("vision", "audio") for key in _COUNTS.split()},
    "clip.minicpmv_query_num": "uint32",
    "clip.minicpmv_version": "int32",
    **{f"clip.{name}.attention.layer_norm_epsilon": "float32" for name in ("vision", "audio")},
    "clip.vision.swiglu_clamp": "float32",
    **{f"clip.has_{name}_encoder": "bool" for name in ("vision", "audio", "gen_audio")},
    **{f"clip.use_{name}": "bool" for name in ("gelu", "silu")},
    **{f"clip.{name}projector_type": "string" for name in ("", "vision.", "audio.")},
    "clip.vision.mm_patch_merge_type": "string",
    "general.name": "string",
    "general.description": "string",
}
"""Keys that libmtmd reads (clip-impl.h), with the types it requires. It aborts on any other type."""
_TYPES: dict[Modality, frozenset[str]] = {"vision": VISION_TYPES, "audio": AUDIO_TYPES}
_UNHEARD = "gemma3nv"
"""Projector type whose files also contain an audio encoder, which libmtmd does not load."""
_OUTPUTS = ("mm.", "a.mm.", "mm_", "resampler.")


@dataclass(frozen=True, slots=True)
class Encoder:
    """An encoder for one kind of input, including the projection of its output."""

    type: str
    """The projection's name in llama.cpp: 'gemma3', 'qwen3vl_merger', ..."""
    n_layers: int
    embedding_length: int
    """Number of channels in the encoder's residual stream."""
    feed_forward_length: int
    image_size: int = 0
    """Width and height of the images used in training, in pixels, or 0 for audio."""
    patch_size: int = 0
    """Width and height of one patch, in pixels."""


@dataclass(frozen=True)
class ProjectorHeader:
    """The header of a projector."""

    header: ModelHeader
    vision: Encoder | None
    audio: Encoder | None

    @cached_property
    def modalities(self) -> tuple[Modality, ...]:
        """The kinds of input that the projector encodes. There is at least one."""
        return modalities(vision=self.vision is not None, audio=self.audio is not None)

    def misfit(self, model: ModelHeader) -> str:
        """Return why the projector does not fit a language model, as the end of a sentence, or '' if it does.

        Its output must be as wide as the model's embeddings, even if the model uses outputs from several of
        the encoder's layers at once (Qwen3-VL's deepstack).
        """
        width = model.embedding_length
        widths = [self.number(f"{name}.projection_dim") for name in self.modalities]
        if width in widths or any(
            width in tensor.shape for tensor in self.header.tensors if tensor.name.startswith(_OUTPUTS)
        ):
            return ""  # old files specify a different width
        return f"its embeddings have {max(widths)} channels, but the model's have {width}"

    def value(self, key: str) -> Value | None:
        """Return the metadata value for a key under 'clip.', or None."""
        return self.header.metadata.get(f"{ARCHITECTURE}.{key}")

    def number(self, key: str, default: int | None = None) -> int:
        """Return a count stored under 'clip.'. It is required unless a default is given.

        Raises ModelFileError.
        """
        value = self.value(key)
        if value is None and default is not None:
            return default
        return _checked(self.header, key, value)


def is_projector(header: ModelHeader) -> bool:
    """Return whether this header belongs to a projector rather than a model."""
    return header.text("general.architecture") == ARCHITECTURE


def read_projector(path: Path) -> ProjectorHeader:
    """Read the header of a projector. Raises ModelFileError, including for other kinds of files."""
    return projector_of(read_header(path))


def read_for(model: ModelHeader, path: Path) -> tuple[ProjectorHeader | None, str]:
    """Return the header of a model's projector, or None and a sentence explaining why it cannot be used."""
    try:
        projector = read_projector(path)
    except ModelFileError as error:
        return None, error.message
    misfit = projector.misfit(model)
    return (None, f"{path.name} does not belong to this model: {misfit}.") if misfit else (projector, "")


def projector_of(header: ModelHeader) -> ProjectorHeader:
    """Check a header and return it as a ProjectorHeader. Raises ModelFileError."""
    if not is_projector(header):
        raise ModelFileError(
            f"{header.path} is not a projector.", hint="Use the mmproj file from the model's repository."
        )
    for key, kind in _READ_AS.items():
        if header.types.get(key, kind) != kind:
            raise unsound(header.path, f"{key!r} is {show(header.types[key])}, not {kind}")
    vision, audio = (_encoder(header, name) for name in _TYPES)
    if vision is None and audio is None:
        raise ModelFileError(
            f"{header.path} encodes neither images nor audio.", hint="Use another copy of the projector."
        )
    if vision is not None and vision.type == _UNHEARD:
        audio = None
    if not header.tensors:
        raise unsound(header.path, "it contains no weights")
    return ProjectorHeader(header, vision, audio)


def _encoder(header: ModelHeader, modality: Modality) -> Encoder | None:
    if header.metadata.get(f"{ARCHITECTURE}.has_{modality}_encoder") is not True:
        return None
    kind = header.text(f"{ARCHITECTURE}.projector_type") or header.text(
        f"{ARCHITECTURE}.{modality}.projector_type"
    )
    if kind not in _TYPES[modality]:
        raise ModelFileError(
            f"{header.path} is a projector of a type that edgechat does not know: {show(kind or 'none')}.",
            hint="It may be newer than this version of edgechat. Update edgechat.",
        )

    def number(key: str, least: int, most: int) -> int:
        name = f"{modality}.{key}"
        value = _checked(header, name, header.metadata.get(f"{ARCHITECTURE}.{name}"))
        if not least <= value <= most:
            raise unsound(header.path, f"{name!r} is {value}, not between {least} and {most}")
        return value

    _checked(header, f"{modality}.projection_dim", header.metadata.get(f"clip.{modality}.projection_dim"))
    width = number("embedding_length", 0, MAX_WIDTH)
    number("attention.head_count", 0, max(1, width))
    n_layers, inner = number("block_count", 0, MAX_LAYERS), number("feed_forward_length", 0, MAX_WIDTH)
    encoder = Encoder(kind, n_layers, width, inner)
    if modality == "audio":
        return encoder
    patch = number("patch_size", 1, MAX_IMAGE)
    if 3 * patch * patch > MAX_WIDTH:
        raise unsound(header.path, f"its patches of {patch} pixels are too large")
    for key in ("image_mean", "image_std"):
        listed = header.metadata.get(f"{ARCHITECTURE}.vision.{key}")
        values = listed.values if isinstance(listed, GgufArray) else None
        if (
            values is None
            or len(values) < 3
            or not all(isinstance(value, float) and math.isfinite(value) for value in values)
        ):
            raise unsound(header.path, f"{key!r} is not a list of three numbers")
    for key, most in _LIMITS.items():
        if f"{ARCHITECTURE}.vision.{key}" in header.metadata:
            number(key, 1, most)
    return replace(encoder, image_size=number("image_size", patch, MAX_IMAGE), patch_size=patch)


def _checked(header: ModelHeader, key: str, value: object) -> int:
    """Return `value` if it is a valid count. Raises ModelFileError if it is missing or invalid."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise ModelFileError(
            f"{header.path} has no valid number for {ARCHITECTURE + '.' + key!r}.",
            hint="Use another copy of the projector.",
        )
    return value


def tower_of(header: ModelHeader) -> tuple[ProjectorHeader | None, str]:
    """Return an MLX model's vision tower, or None and a sentence explaining why it cannot be used.

    The sentence is '' if the tower can be used, or if the model has none.
    """
    kind = header.text(KIND)
    if kind is None:
        return None, ""
    tower = TOWERS.get(kind)
    if tower is None:
        return None, f"edgechat's MLX backend does not support images for this kind of model: {show(kind)}."
    if problem := header.text(PROBLEM):
        return None, problem

    def number(key: str) -> int:
        value = header.metadata[f"clip.vision.{key}"]
        assert isinstance(value, int)
        return value

    encoder = Encoder(
        tower.type,
        n_layers=number("block_count"),
        embedding_length=number("embedding_length"),
        feed_forward_length=number("feed_forward_length"),
        image_size=number("image_size"),
        patch_size=number("patch_size"),
    )
    return ProjectorHeader(replace(header, tensors=header.vision_tensors), encoder, None), ""
