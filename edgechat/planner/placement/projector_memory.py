"""What a projector takes: tokens of the context for a picture, and memory, by formula.

llama.cpp's dry run knows nothing of projectors. libmtmd (tools/mtmd) loads the weights as they are, into one
buffer, and computes a picture at once: its compute buffer grows with the largest one that came. All constants
are here; they are those of the llama.cpp that is bound, commit 0c1e57098, and its own allocator
(mtmd_get_memory_usage) confirms the formula to within 1 % for SigLIP with the projections of Gemma 3 and
Idefics 3, and for the encoders of Qwen3-VL and Gemma 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgechat.models.formats.projector import Encoder, ProjectorHeader

MAX_TOKENS = 4096
"""Most tokens of one picture that are planned for, where the model would take more: what Qwen's take."""
_SHARE = 2
"""A picture takes at most the context divided by this, or there is no room for a question and an answer."""
_FLOAT, _HALF = 4, 2
MOST_HEARD = 1500
"""Positions of 30 seconds of sound: Whisper's, and more than other encoders have. What does not cut a sound
into such parts is given no longer one, which would take more memory than is planned."""
_TABLES = 16 << 20
"""Bytes of the tables of graph and scheduler of one encoder (8,192 nodes)."""
_PIXEL = 3 * (_FLOAT + 1)
"""Bytes of a pixel of the picture as it is handed on, and of the numbers that are made of it."""
_MLX_VLM = 32 << 20
"""Bytes of mlx-vlm and its processors, beyond mlx-lm; 24 MB were measured on Linux."""
_NON_CAUSAL = {"gemma3", "gemma4uv", "gemma4v", "deepseek4v"}
"""Whose pictures attend to themselves in both directions (mtmd_decode_use_non_causal): one call computes all
tokens of one, and llama.cpp aborts if n_ubatch is less."""
_CAUSAL_WIDTHS = {"gemma4v": (1536, 2560)}
"""Models by the width of their embeddings that are an exception: Gemma 4 E2B and E4B."""
_UNLOADED = {"gemma3nv": "a."}
"""Tensors that are in the file and not loaded."""


@dataclass(frozen=True, slots=True)
class PictureRule:
    """How many tokens a picture becomes (clip.cpp's load_hparams and clip_n_output_tokens)."""

    merge: int = 1
    """Patches along a side that become one token, unless the file says otherwise."""
    most: int = 0
    """Tokens of the largest picture; 0: all are brought to the size that the encoder was trained with."""
    tiles: int = 1
    """Parts that a large picture is cut into, the overview included; the encoder computes one at a time."""
    tokens: int = 0
    """Of each of them, where patches do not matter."""
    joined: bool = False
    """Whether the merged patches are the encoder's positions."""


_RULES = {
    "adapter": PictureRule(merge=2),
    "deepseek4v": PictureRule(most=384),
    "deepseekocr": PictureRule(merge=4, tiles=10),
    "deepseekocr2": PictureRule(merge=4, tiles=7),
    "dots3note_v": PictureRule(most=MAX_TOKENS),
    "dots_ocr": PictureRule(most=MAX_TOKENS),
    "exaone4_5": PictureRule(merge=2, most=MAX_TOKENS),
    "gemma3": PictureRule(merge=4),
    "gemma3nv": PictureRule(tokens=256),
    "gemma4uv": PictureRule(merge=3, most=1120, joined=True),
    "gemma4v": PictureRule(merge=3, most=1120),
    "glm4v": PictureRule(merge=2, most=4096),
    "glm5v": PictureRule(merge=2, most=MAX_TOKENS),
    "granite4_vision": PictureRule(tiles=10),
    "hunyuanvl": PictureRule(merge=2, most=16384),
    "idefics3": PictureRule(tiles=17),
    "internvl": PictureRule(merge=2, tiles=13),
    "kimik25": PictureRule(most=4096),
    "kimivl": PictureRule(most=1024),
    "ldp": PictureRule(merge=2),
    "ldpv2": PictureRule(merge=2),
    "lfm2": PictureRule(merge=2, most=256, tiles=11),
    "lightonocr": PictureRule(most=MAX_TOKENS),
    "ling3vl": PictureRule(merge=2, most=4096),
    "llama4": PictureRule(merge=2, tiles=10),
    "mimovl": PictureRule(merge=2, most=MAX_TOKENS),
    "minicpmv4_6": PictureRule(merge=4, tiles=10),
    "minimax_m3": PictureRule(merge=2, most=576),
    "mlp": PictureRule(tiles=5),
    "muse-glimmer": PictureRule(merge=2, most=4096),
    "paddleocr": PictureRule(merge=2, most=MAX_TOKENS),
    "phi4": PictureRule(most=MAX_TOKENS),
    "pixtral": PictureRule(most=1024),
    "qwen2.5o": PictureRule(merge=2, most=4096),
    "qwen2.5vl_merger": PictureRule(merge=2, most=4096),
    "qwen2vl_merger": PictureRule(merge=2, most=4096),
    "qwen3vl_merger": PictureRule(merge=2, most=4096),
    "resampler": PictureRule(tiles=10, tokens=96),
    "step3vl": PictureRule(merge=4, tiles=26),
    "yasa2": PictureRule(tokens=64),
    "youtuvl": PictureRule(merge=2, most=62500),
}
"""By the type of projection; others are brought to one size, and a patch is a token."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The largest picture."""

    tokens: int
    """That it takes of the context; 0 for a projector that only hears."""
    patches: int
    """That the encoder computes at once."""
    pixels: int
    """Of what it computes at once."""
    whole: int
    """Tokens that one call of the model must compute together; 0 where any part will do."""


def largest_picture(projector: ProjectorHeader, width: int, context: int) -> Picture:
    """Return the largest picture for a model with embeddings of this width and so many tokens of context."""
    vision = projector.vision
    if vision is None:
        return Picture(0, 0, 0, 0)
    rule = _RULES.get(vision.type, PictureRule())
    patch, merge = vision.patch_size, _merge(projector, rule)
    if rule.joined:
        patch, merge = patch * merge, 1
    longest = projector.number("vision.preproc_image_size", 0)
    room = max(1, min(MAX_TOKENS, context // _SHARE))
    tiles = rule.tiles
    if rule.most:
        pixels = projector.number("vision.image_max_pixels", 0) or longest**2
        one = min(pixels // (patch * merge) ** 2 or rule.most, room)
        patches = one * merge**2
    else:
        patches = (vision.image_size // patch) ** 2
        one = rule.tokens or max(1, patches // merge**2)
        stated = projector.number("vision.preproc_max_tiles", 0) or (-(-longest // vision.image_size)) ** 2
        tiles = stated + 1 if stated and tiles > 1 else tiles
    tokens = min(one * tiles, max(one, room))
    is_causal = vision.type not in _NON_CAUSAL or width in _CAUSAL_WIDTHS.get(vision.type, ())
    return Picture(tokens, patches, patches * patch**2, 0 if is_causal else one)


def _merge(projector: ProjectorHeader, rule: PictureRule) -> int:
    """Return how many patches along a side become one token."""
    keys = ("vision.spatial_merge_size", "vision.projector.scale_factor")
    stated = [projector.number(key) for key in keys if projector.value(key) is not None]
    return stated[0] if stated else rule.merge


def weights_bytes(projector: ProjectorHeader) -> int:
    """Return the bytes of the weights that are loaded."""
    unloaded = _UNLOADED.get(projector.vision.type) if projector.vision is not None else None
    tensors = projector.header.tensors
    return sum(t.n_bytes for t in tensors if unloaded is None or not t.name.startswith(unloaded))


def compute_bytes(projector: ProjectorHeader, picture: Picture, *, on_cpu: bool) -> int:
    """Return the bytes of the buffers of all its encoders, with flash attention.

    on_cpu: the processor also copies what it multiplies with F16 weights.
    """
    total = 0
    both = ((projector.vision, picture.patches, "v."), (projector.audio, MOST_HEARD, "a."))
    for encoder, n, prefix in both:
        if encoder is not None:
            position = _FLOAT * _numbers(encoder, is_gated=_is_gated(projector, prefix))
            copied = _HALF * max(encoder.feed_forward_length, encoder.embedding_length) if on_cpu else 0
            total += n * (position + copied) + _TABLES
    return total + (_written_by_mlx(projector, picture.patches) if projector.header.format == "mlx" else 0)


def _written_by_mlx(projector: ProjectorHeader, n: int) -> int:
    """Return the bytes that MLX writes down besides: one layer's scores, and what each layer gave.

    One float a score was measured on a processor; Metal writes none where it knows the size of the heads.
    """
    assert projector.vision is not None
    size = max((t.type.row_bytes(1) for t in projector.header.tensors if len(t.shape) == 1), default=_HALF)
    streams = n * projector.vision.embedding_length * projector.vision.n_layers
    return size * (projector.number("vision.attention.head_count", 16) * n**2 + streams) + _MLX_VLM


def host_bytes(picture: Picture, width: int) -> int:
    """Return the bytes of RAM that a picture takes wherever it is encoded: its pixels and its embeddings."""
    return _PIXEL * picture.pixels + _FLOAT * width * picture.tokens


def _numbers(encoder: Encoder, *, is_gated: bool) -> int:
    """Return the numbers that are kept of one position in the widest part of a layer (clip.cpp's build_vit).

    In attention these are the residual stream, queries, keys and values, the latter two in F16 as well, and
    the result; in the feed-forward part three of the stream's width, and with a gate three inner ones.
    """
    width, inner = encoder.embedding_length, encoder.feed_forward_length
    pixels = 3 * encoder.patch_size**2
    if is_gated:
        return 3 * width + 3 * inner + pixels
    return max(6 * width + pixels, 3 * width + inner)


def _is_gated(projector: ProjectorHeader, prefix: str) -> bool:
    return any(t.name.startswith(prefix) and "ffn_gate" in t.name for t in projector.header.tensors)
