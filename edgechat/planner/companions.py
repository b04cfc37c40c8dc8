"""Companions of a model: its projector and LoRA adapters, including their memory use and placement.

Projectors are not covered by llama.cpp's dry run. libmtmd (tools/mtmd) loads the weights unchanged into one
buffer and encodes each picture in one go, so its compute buffer grows with the largest picture so far. The
constants match the bundled llama.cpp, commit 0c1e57098. Its own allocator (mtmd_get_memory_usage) confirms
the formula to within 1 % for SigLIP with the Gemma 3 and Idefics 3 projections, and for the Qwen3-VL and
Gemma 4 encoders. A card encodes pictures at least ten times faster than a CPU, but moving layers off the card
to make room for the projector slows down every token. So the projector goes on a card if all layers still
fit, and otherwise wherever a question about a picture is answered sooner (`ModelOnMachine` compares the two).

Adapters: each pair of matrices is placed with the tensor it modifies. llama.cpp applies them in buffers
that the model needs anyway.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edgechat.base.errors import BadRequest, DiskError, ModelFileError
from edgechat.base.text import one_line
from edgechat.device.mlx import missing_vision
from edgechat.device.speed import ROWS, DeviceSpeed
from edgechat.models.adapters.reading import EMBEDDING, parse_scaled
from edgechat.models.formats.header import Modality, ModelHeader, modalities
from edgechat.models.formats.projector import Encoder, ProjectorHeader, read_for, tower_of
from edgechat.models.formats.quants import GgmlType
from edgechat.native.params import AdapterUse
from edgechat.planner.estimate.budget import RAM, Budget, Needs, together

TOWER = "its vision tower"
"""How plans refer to an MLX model's projector."""
ANSWER = 256
"""Assumed length in tokens of an answer about a picture, for comparing devices."""


class ProjectorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How to load a projector, which lets a model see or hear."""

    path: str
    """Path of its file; empty if it is not on this machine."""
    name: str
    vision: bool
    audio: bool
    device: str = ""
    """llama.cpp's name for the accelerator it is placed on; empty for the CPU."""
    image_tokens: int = 0
    """Maximum number of context tokens for a picture; larger pictures are scaled down."""
    image_batch: int = 0
    """Number of picture tokens that must be in the same call (the minimum n_ubatch); 0 means no minimum."""
    file_bytes: int = 0
    weights_bytes: int = 0
    compute_bytes: int = 0
    """Size for the largest picture. Less is allocated until a picture of that size has been read."""
    host_bytes: int = 0
    """RAM for the picture itself, whichever device encodes it."""

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """The kinds of input that the projector adds to the model."""
        return modalities(vision=self.vision, audio=self.audio)

    @property
    def total_bytes(self) -> int:
        """Total memory needed, in bytes."""
        return self.weights_bytes + self.compute_bytes + self.host_bytes

    @property
    def needs(self) -> dict[str, Needs]:
        """Bytes needed in each kind of memory."""
        there = Needs(projector_bytes=self.weights_bytes + self.compute_bytes)
        return together({RAM: Needs(projector_bytes=self.host_bytes)}, {self.device or RAM: there})

    def unused_bytes(self, memory: str) -> int:
        """Return how many of the bytes planned for this memory are not allocated until a picture is read."""
        return self.host_bytes * (memory == RAM) + self.compute_bytes * (memory == (self.device or RAM))


def header_beside(model: ModelHeader, path: Path | None) -> tuple[ProjectorHeader | None, str]:
    """Return the header of a model's projector, or None and the reason it cannot be used ('' if it has none).

    path: the projector file that accompanies a GGUF file. An MLX model's own folder holds its vision tower.
    """
    if model.format != "mlx":
        return read_for(model, path) if path is not None else (None, "")
    tower, problem = tower_of(model)
    problem = problem or (missing_vision() if tower is not None else "")
    return (None, problem) if problem else (tower, "")


@dataclass(frozen=True, slots=True)
class ProjectorFile:
    """A projector that belongs to a model."""

    name: str
    header: ProjectorHeader
    path: str = ""

    def plan(self, picture: Picture, width: int, device: str) -> ProjectorPlan:
        """Return the plan for placing it on a device; '' means RAM."""
        return ProjectorPlan(
            path=self.path,
            name=self.name,
            vision=self.header.vision is not None,
            audio=self.header.audio is not None,
            device=device,
            image_tokens=picture.tokens,
            image_batch=picture.whole,
            file_bytes=self.header.header.file_size,
            weights_bytes=weights_bytes(self.header),
            compute_bytes=compute_bytes(self.header, picture, on_cpu=not device),
            host_bytes=host_bytes(picture, width),
        )


def places(budget: Budget) -> Iterator[str]:
    """Yield the cards that could hold a projector, best first, then '' for RAM.

    RPC servers cannot encode pictures.
    """
    for card in reversed(budget.cards):
        if not card.name.startswith("RPC"):
            yield card.name
    yield ""


def encoding_seconds(projector: ProjectorHeader, picture: Picture, speed: DeviceSpeed) -> float:
    """Return the seconds it takes to encode a picture: matrix products plus self-attention.

    For an audio-only projector, return the time for half a minute of audio.
    """
    encoder, n, layers = projector.vision, picture.patches, "v.blk."
    if encoder is None:
        encoder, n, layers = projector.audio, MOST_HEARD, "a.blk."
    assert encoder is not None
    weights: Counter[GgmlType] = Counter()
    for tensor in projector.header.tensors:
        if tensor.name.startswith(layers):
            weights[tensor.type] += tensor.n_elements
    products = sum(count * speed.kernels[kind.name][-1] for kind, count in weights.items()) / ROWS[-1]
    return n * (products + 4 * n * encoder.embedding_length * encoder.n_layers * speed.attention[-1])


def why_there(device: str, card: str, moved: int) -> str:
    """Return the reason for placing a projector on `device`, as the end of a sentence.

    card: the card that was considered. moved: how many layers the projector pushes, or would push, off it.
    """
    if device:
        layers = f"{moved} more layers then run" if moved > 1 else "1 more layer then runs"
        less = f", even though {layers} on the CPU" if moved else ""
        return f"where questions about pictures are answered sooner{less}"
    what = f"{moved} layer{'s' if moved > 1 else ''}" if moved else "experts"
    return f"as it would push {what} off {card}, and answers would take longer"


MAX_TOKENS = 4096
"""Maximum number of tokens to plan for in one picture, even if the model allows more (Qwen's limit)."""
_SHARE = 2
"""A picture may take at most 1/N of the context, which leaves room for a question and an answer."""
_FLOAT, _HALF = 4, 2
MOST_HEARD = 1500
"""Number of positions that Whisper uses for 30 seconds of audio, more than any other encoder. The same limit
applies to encoders that do not split audio into 30-second parts, as more would exceed the planned memory.
"""
_TABLES = 16 << 20
"""Size in bytes of an encoder's graph and scheduler tables (8,192 nodes)."""
_PIXEL = 3 * (_FLOAT + 1)
"""Bytes per pixel of a picture, which is held both as bytes and as floats."""
_MLX_VLM = 32 << 20
"""Bytes that mlx-vlm and its processors take in addition to mlx-lm (24 MB when measured on Linux)."""
_NON_CAUSAL = {"gemma3", "gemma4uv", "gemma4v", "deepseek4v"}
"""Projectors with bidirectional attention within a picture (mtmd_decode_use_non_causal). All of a picture's
tokens must be in one call; llama.cpp aborts if n_ubatch is smaller than their number.
"""
_CAUSAL_WIDTHS = {"gemma4v": (1536, 2560)}
"""Exceptions to `_NON_CAUSAL`, identified by embedding width: Gemma 4 E2B and E4B."""
_UNLOADED = {"gemma3nv": "a."}
"""Name prefixes of tensors that are not loaded."""


@dataclass(frozen=True, slots=True)
class PictureRule:
    """How many tokens a picture takes (see load_hparams and clip_n_output_tokens in clip.cpp)."""

    merge: int = 1
    """Number of patches merged along each side to form a token, if the file does not specify it."""
    most: int = 0
    """Tokens in the largest picture; 0 if all pictures are scaled to the encoder's training size."""
    tiles: int = 1
    """Number of tiles in a large picture, including the overview. The encoder computes them one at a time."""
    tokens: int = 0
    """Number of tokens per tile, if it does not depend on the patches."""
    joined: bool = False
    """Whether the encoder works on patches that are already merged."""


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
"""Rules, keyed by projection type. Other types scale all pictures to one size, with one token per patch."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The largest picture to plan for."""

    tokens: int
    """Number of context tokens; 0 for an audio-only projector."""
    patches: int
    """Number of patches that the encoder computes at once."""
    pixels: int
    """Number of pixels in these patches."""
    whole: int
    """Number of tokens that the model must compute in one call; 0 if it need not compute them together."""


def largest_picture(projector: ProjectorHeader, width: int, context: int) -> Picture:
    """Return the largest picture that a model with this embedding width and context (in tokens) can read."""
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
    keys = ("vision.spatial_merge_size", "vision.projector.scale_factor")
    stated = [projector.number(key) for key in keys if projector.value(key) is not None]
    return stated[0] if stated else rule.merge


def weights_bytes(projector: ProjectorHeader) -> int:
    """Return the size of the loaded weights in bytes."""
    unloaded = _UNLOADED.get(projector.vision.type) if projector.vision is not None else None
    tensors = projector.header.tensors
    return sum(t.n_bytes for t in tensors if unloaded is None or not t.name.startswith(unloaded))


def compute_bytes(projector: ProjectorHeader, picture: Picture, *, on_cpu: bool) -> int:
    """Return the total size in bytes of all encoders' compute buffers, assuming flash attention.

    on_cpu: include the copies of activations that a CPU needs for products with F16 weights.
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
    """Return how many additional bytes MLX needs for one layer's scores and for the output of each layer.

    On a CPU, it needs one float per score (measured). Metal stores no scores for the head sizes it supports.
    """
    assert projector.vision is not None
    size = max((t.type.row_bytes(1) for t in projector.header.tensors if len(t.shape) == 1), default=_HALF)
    streams = n * projector.vision.embedding_length * projector.vision.n_layers
    return size * (projector.number("vision.attention.head_count", 16) * n**2 + streams) + _MLX_VLM


def host_bytes(picture: Picture, width: int) -> int:
    """Return how many bytes of RAM a picture takes for pixels and embeddings, whichever device encodes it."""
    return _PIXEL * picture.pixels + _FLOAT * width * picture.tokens


def _numbers(encoder: Encoder, *, is_gated: bool) -> int:
    """Return how many values each position has in the widest part of a layer (clip.cpp's build_vit).

    The attention part holds the residual stream, queries, keys, values, F16 copies of the keys and values,
    and the result. The feed-forward part holds three vectors as wide as the stream, and one inner vector, or
    three if gated.
    """
    width, inner = encoder.embedding_length, encoder.feed_forward_length
    pixels = 3 * encoder.patch_size**2
    if is_gated:
        return 3 * width + 3 * inner + pixels
    return max(6 * width + pixels, 3 * width + inner)


def _is_gated(projector: ProjectorHeader, prefix: str) -> bool:
    return any(t.name.startswith(prefix) and "ffn_gate" in t.name for t in projector.header.tensors)


_EXPERTS = "_exps."


class AdapterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter that applies to every request unless the request says otherwise."""

    name: str
    path: str
    """The path of a GGUF file, or of a folder saved by PEFT."""
    scale: float
    rank: int
    """The adapter's largest rank."""
    total_bytes: int
    parts: tuple[tuple[str, int | None, int], ...] = ()
    """For each modified tensor: name, layer (None if outside the layers), and size of its pair in bytes."""

    @property
    def use(self) -> AdapterUse:
        """The adapter in the form that requests use."""
        return AdapterUse(self.path, self.scale)


def plan_adapters(
    texts: Sequence[str], usual: Sequence[str], header: ModelHeader
) -> tuple[tuple[AdapterPlan, ...], tuple[str, ...]]:
    """Return the adapters for a model, and a sentence about each adapter that is left out.

    texts: requested adapters, as FILE or NAME:SCALE. usual: adapters to use with every model that they fit.
    Raises NotAnAdapter, ModelFileError or DiskError if a requested adapter cannot be used.
    """
    found, notes = [_planned(text, header) for text in texts], []
    for text in usual:
        try:
            found.append(_planned(text, header))
        except (BadRequest, DiskError, ModelFileError) as error:
            notes.append(f"The adapter {one_line(text, 80)} is not applied. {error.message}")
    return tuple(found), tuple(notes)


def _planned(text: str, header: ModelHeader) -> AdapterPlan:
    # Imported here because most plans involve no adapters.
    from edgechat.models.adapters.local import find_adapter
    from edgechat.models.adapters.peft import open_adapter

    name, scale = parse_scaled(text)
    found = find_adapter(name)
    adapter = open_adapter(found.path, header)
    return AdapterPlan(
        name=found.name,
        path=str(found.path),
        scale=scale,
        rank=adapter.rank,
        total_bytes=adapter.n_bytes,
        parts=tuple(adapter.parts()),
    )


def adapter_needs(
    adapters: Sequence[AdapterPlan], devices: Sequence[str], experts_in_ram: int
) -> dict[str, Needs]:
    """Return how many bytes the adapters need in each kind of memory.

    devices: each layer's device, then the output's. experts_in_ram: number of layers with experts in RAM.
    """
    taken: defaultdict[str, int] = defaultdict(int)
    for adapter in adapters:
        for tensor, layer, n_bytes in adapter.parts:
            device = RAM if tensor == EMBEDDING else devices[-1]
            if layer is not None and layer < len(devices) - 1:
                device = RAM if _EXPERTS in tensor and layer < experts_in_ram else devices[layer]
            taken[device] += n_bytes
    return {name: Needs(adapter_bytes=n_bytes) for name, n_bytes in taken.items()}
