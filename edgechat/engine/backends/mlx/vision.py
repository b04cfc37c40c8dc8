"""Vision models: loaded by mlx-vlm and called like mlx-lm's models, with the processor that cuts up images.

mlx-vlm also provides the language model, since its version accepts embeddings and positions with three
components. The caches are replaced with those in `caches.py`. A model family is supported only if this module
presents images as its makers intended: at the right positions, and with the right tokens attending to each
other. The families have the same names as in `models/formats/mlx/vision.py`.
"""

# ruff: noqa: D102  (base.py documents the methods of its protocols)

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx.nn.layers.base import Module
from PIL import Image

from edgechat.base.errors import BackendMissing, BadRequest, DecodeFailed, LoadFailed
from edgechat.base.images.image import Pixels
from edgechat.base.sound.sound import Samples
from edgechat.device.mlx import missing_vision
from edgechat.engine.backends.base import MOST_CELLS, Embeddings, EncodingStopped, Media, media_ids
from edgechat.engine.backends.mlx.caches import CacheLayers
from edgechat.engine.backends.mlx.folder import knows, load_errors, load_folder, read_weights
from edgechat.models.formats.mlx.config import Config, bounded, parse_json
from edgechat.planner.plan import LoadPlan

Arrays = Mapping[str, npt.NDArray[np.generic]]
"""A processor's output for an image, keyed by mlx-vlm's names."""


@dataclass(frozen=True, slots=True)
class Family:
    """Properties of the models with a given `model_type`."""

    module: str
    """The mlx-vlm module that contains the processor."""
    processor: str
    """Name of the processor's class."""
    stands_for: str
    """Placeholder for an image in the processor's input text."""
    piece: Callable[[Arrays, int], Arrays]
    """Function that returns the pixels for one run of an image's cells, given the run's index."""
    sees_itself: bool = False
    """Whether cells of a run attend to each other in both directions, unless the config says otherwise."""
    turns_thrice: bool = False
    """Whether positions consist of time, row and column (M-RoPE)."""


def _of_batch(arrays: Arrays, number: int) -> Arrays:
    return {"pixel_values": arrays["pixel_values"][number : number + 1]}


def _of_tiles(arrays: Arrays, number: int) -> Arrays:
    names = [name for name in ("pixel_values", "pixel_attention_mask") if name in arrays]
    return {name: arrays[name][:, number : number + 1] for name in names}


def _of_patches(arrays: Arrays, number: int) -> Arrays:
    grids = arrays["image_grid_thw"].astype(np.int64)
    start = int(grids[:number].prod(axis=1).sum())
    stop = start + int(grids[number].prod())
    return {
        "pixel_values": arrays["pixel_values"][start:stop],
        "image_grid_thw": grids[number : number + 1].astype(np.int32),
    }


_QWEN = "<|vision_start|><|image_pad|><|vision_end|>"
FAMILIES: Mapping[str, Family] = {
    "gemma3": Family("gemma3", "Gemma3Processor", "<start_of_image>", _of_batch, sees_itself=True),
    "gemma4": Family("gemma4", "Gemma4Processor", "<|image|>", _of_batch, sees_itself=True),
    "idefics3": Family("idefics3", "Idefics3Processor", "<image>", _of_tiles),
    "llava": Family("llava", "LlavaProcessor", "<image>", _of_batch),
    "qwen2_5_vl": Family("qwen2_5_vl", "Qwen2_5_VLProcessor", _QWEN, _of_patches, turns_thrice=True),
    "qwen2_vl": Family("qwen2_vl", "Qwen2VLProcessor", _QWEN, _of_patches, turns_thrice=True),
    "qwen3_5": Family("qwen3_vl", "Qwen3VLProcessor", _QWEN, _of_patches, turns_thrice=True),
    "qwen3_5_moe": Family("qwen3_vl", "Qwen3VLProcessor", _QWEN, _of_patches, turns_thrice=True),
    "qwen3_vl": Family("qwen3_vl", "Qwen3VLProcessor", _QWEN, _of_patches, turns_thrice=True),
    "qwen3_vl_moe": Family("qwen3_vl", "Qwen3VLProcessor", _QWEN, _of_patches, turns_thrice=True),
    "smolvlm": Family("smolvlm", "SmolVLMProcessor", "<image>", _of_tiles),
}
"""Keyed by the `model_type` in config.json, which is also mlx-vlm's name for the family."""


_SIZES = ("size", "crop_size", "max_image_size", "max_soft_tokens")
_LARGEST = 1 << 13
"""Maximum side length of a resized image in pixels, or maximum number of tokens for it."""
_MAX_INDEX = 64 << 20
_HEARS = {"audio_tower", "embed_audio"}
Offsets = npt.NDArray[np.int64]


class VlmModel:
    """A model loaded by mlx-vlm."""

    def __init__(self, folder: Path, name: str, kind: str, on_progress: Callable[[float], None]) -> None:
        """kind: `model_type`, a key of FAMILIES. Raises LoadFailed, OutOfMemory or BackendMissing."""
        try:
            from mlx_vlm import utils
        except ImportError as error:
            why = missing_vision() or f"mlx-vlm cannot be imported: {error}."
            raise BackendMissing(why, hint="Use a GGUF file of the model: --backend llama.cpp") from error
        self.family: Family = FAMILIES[kind]
        self.pause: Callable[[], None] = lambda: None
        """Called between the vision tower's layers, in the thread that computes them."""
        with load_errors(name):
            _check_index(folder)
            model: Any = utils.load_model(folder, lazy=True)
            for part in _HEARS & model.keys():
                setattr(model, part, None)  # so that its weights are not read
            self._processor = _processor(folder, self.family)
            read_weights(model, on_progress)
            self._model, self._language = model, model.language_model
            both_ways = getattr(model.config.text_config, "use_bidirectional_attention", "vision")
            self.sees_itself = self.family.sees_itself and both_ways == "vision"
            if kind == "gemma3":  # mlx-vlm divides by another model's width, so images come out too bright
                model.config.hidden_size = model.config.text_config.hidden_size
            embedded = model.get_input_embeddings(mx.array([[0]])).inputs_embeds
            self.width, self._dtype = embedded.shape[-1], embedded.dtype
            self._cell = int(self._processor.image_token_id)
            tower = [module for one in _towers(model) for module in one.modules()]
            # Streams belong to threads: arrays created lazily in this thread cannot be computed in another.
            mx.eval([array for module in tower for array in _arrays_of(module)])
            for module in tower:
                self._pause_between_layers(module)
        self.layers: list[Any] = list(model.layers)

    def make_cache(self) -> list[Any]:
        """Return empty caches of mlx-vlm's classes."""
        from mlx_vlm.models.cache import make_prompt_cache

        caches: list[Any] = make_prompt_cache(self._language)
        return caches

    def __call__(self, tokens: mx.array, cache: list[Any], **options: Any) -> mx.array:
        """Return the logits [1, n, n_vocab] for tokens [1, n] that follow those in the caches."""
        logits: mx.array = self._language(tokens, cache=cache, **options).logits
        return logits

    def at(self, positions: Offsets) -> dict[str, mx.array]:
        """Return the call arguments for the positions of tokens [n], or of an image's cells [3, n]."""
        if not self.family.turns_thrice:
            return {}
        found = mx.array(np.broadcast_to(positions, (3, positions.shape[-1])), mx.int32)
        return {"position_ids": found[:, None]}

    def process(self, image: Any, most_cells: int) -> tuple[list[int | None], Arrays]:
        """Return the tokens for an image, with None for each of its cells, and its processed pixels."""
        options: dict[str, int] = {}
        cutter = self._processor.image_processor
        if self.family.turns_thrice and most_cells:
            side = cutter.patch_size * cutter.merge_size
            most = options["max_pixels"] = min(cutter.max_pixels, most_cells * side**2)
            options["min_pixels"] = min(cutter.min_pixels, most)
        made = self._processor(text=[self.family.stands_for], images=[image], **options)
        arrays = {name: np.array(value) for name, value in made.items() if value is not None}
        tokenizer = self._processor.tokenizer
        ids = [int(one) for one in arrays.pop("input_ids").reshape(-1)]
        # Tokens that begin and end every text are not part of the image.
        ids = ids[ids[:1] == [tokenizer.bos_token_id] :]
        ids = ids[: len(ids) - (ids[-1:] == [tokenizer.eos_token_id])]
        return [None if one == self._cell else one for one in ids], arrays

    def offsets(self, n_cells: int, piece: Arrays) -> Offsets:
        """Return the positions of a run's cells relative to the first: [n], or [3, n] with M-RoPE."""
        if not self.family.turns_thrice:
            return np.arange(n_cells)
        merge = self._processor.image_processor.merge_size
        shape = [
            int(size) // step
            for size, step in zip(piece["image_grid_thw"][0], (1, merge, merge), strict=True)
        ]
        return np.indices(shape).reshape(3, -1)

    def embed(self, n_cells: int, piece: Arrays) -> Embeddings:
        """Return a run's embeddings [n_cells, n]. Each row also includes the embeddings for deeper layers."""
        cells = mx.full((1, n_cells), self._cell, mx.int32)
        pixels = {name: mx.array(values) for name, values in piece.items()}
        found = self._model.get_input_embeddings(cells, mask=mx.ones_like(cells), **pixels)
        deeper = found.deepstack_visual_embeds
        rows = [found.inputs_embeds[0], *([] if deeper is None else deeper)]
        return np.array(mx.concatenate([row.astype(mx.float32) for row in rows], axis=-1))

    def shown(self, embeddings: Embeddings) -> tuple[mx.array, dict[str, mx.array]]:
        """Return placeholder tokens [1, n] and the other call arguments for embeddings from `embed`."""
        # For cells, Gemma 4's additional embeddings are those of the padding token, 0.
        cells = mx.zeros((1, len(embeddings)), mx.int32)
        parts = [
            mx.array(embeddings[:, at : at + self.width]).astype(self._dtype)
            for at in range(0, embeddings.shape[1], self.width)
        ]
        options = {"inputs_embeds": parts[0][None]}
        if len(parts) > 1:
            deeper = {"visual_pos_masks": cells >= 0, "deepstack_visual_embeds": mx.stack(parts[1:])}
            options |= deeper
        return cells, options

    def _pause_between_layers(self, module: Any) -> None:
        for name, value in list(module.items()):
            if isinstance(value, list) and len(value) > 1 and isinstance(value[0], Module):
                module[name] = [_PausedLayer(layer, self) for layer in value]


def load_model(
    plan: LoadPlan, config: Config, name: str, on_progress: Callable[[float], None] | None
) -> tuple[Any, str]:
    """Load a plan's model and return it, with the reason why planned vision is missing ('' if it is not).

    mlx-vlm loads models with vision, and models that mlx-lm does not support. If mlx-vlm fails, mlx-lm is
    tried instead. Raises LoadFailed, OutOfMemory or BackendMissing.
    """
    folder, kind = Path(plan.model_path), str(config.whole.get("model_type"))
    tell, is_known = on_progress or (lambda _progress: None), knows(kind)
    no_vision = ""
    if kind in FAMILIES and (plan.projector is not None or not is_known):
        try:
            model = VlmModel(folder, name, kind, tell)
            CacheLayers(model, plan.cache_type)  # rejects unknown caches
            return model, ""
        except (BackendMissing, LoadFailed) as error:
            if is_known:
                no_vision = error.message
            elif isinstance(error, BackendMissing):
                what = f"mlx-lm does not know models of this kind ({kind})."
                raise BackendMissing(f"{what} {error.message}", hint=error.hint) from error
            else:
                raise
    return load_folder(folder, name, tell), no_vision


class _PausedLayer:
    """A layer of a vision tower, computed separately so that other work can run before the next layer."""

    def __init__(self, layer: Any, model: VlmModel) -> None:
        self._layer, self._model = layer, model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        result = self._layer(*args, **options)
        mx.eval(result)
        self._model.pause()
        return result


def _check_index(folder: Path) -> None:
    """Raise ValueError if the index refers to files outside the folder."""
    index = folder / "model.safetensors.index.json"
    listed = parse_json(bounded(index, _MAX_INDEX), index.name).get("weight_map") if index.is_file() else {}
    if not isinstance(listed, dict) or any(Path(str(file)).name != file for file in listed.values()):
        raise ValueError("its index must only list files in its folder")


def _processor(folder: Path, family: Family) -> Any:
    """Return the image processor.

    Uses the family's own processor class, since mlx-vlm's AutoProcessor would run code from the folder.
    """
    module = importlib.import_module(f"mlx_vlm.models.{family.module}.processing_{family.module}")
    processor = getattr(module, family.processor).from_pretrained(folder, trust_remote_code=False)
    for size in filter(None, (getattr(processor.image_processor, name, None) for name in _SIZES)):
        if any(not isinstance(one, int) or not 0 < one <= _LARGEST for one in _numbers(size)):
            raise ValueError(f"images cannot be resized to {str(size)[:100]}")
    return processor


def _numbers(size: Any) -> list[Any]:
    """Return the numbers in a size, which is either a single number or a table."""
    if isinstance(size, int):
        return [size]
    return [one for one in (size if isinstance(size, dict) else vars(size)).values() if one is not None]


def _towers(model: Any) -> Iterator[Any]:
    """Yield the parts of a model other than its language model."""
    for name, part in model.items():
        if name != "language_model" and isinstance(part, Module):
            yield part


def _arrays_of(module: Any) -> Iterator[mx.array]:
    """Yield the arrays held directly by a module, including tables that are not weights."""
    for value in (*module.values(), *vars(module).values()):
        if isinstance(value, mx.array):
            yield value


_LONGEST = 200
"""Maximum aspect ratio: a more elongated image would take gigabytes when scaled up."""


class MediaReader(Protocol):
    """The backend method needed to decode images."""

    def read_media(
        self, seq: int, start: int, media: Media, embeddings: Embeddings, offsets: Offsets
    ) -> None:
        """Compute a run of cells and append it to a sequence; see `MediaEncoder.decode`.

        offsets: the cells' positions relative to the next position in the sequence.
        """


class MlxVision:
    """The vision tower of a loaded model."""

    sees, hears, sample_rate = True, False, 0

    def __init__(self, model: VlmModel, folder: Path, backend: MediaReader, most_cells: int) -> None:
        """most_cells: maximum tokens per image; 0 leaves the choice to the processor."""
        self._model, self._backend, self._most_cells = model, backend, most_cells
        self._name, self._cutting = folder.name, threading.Lock()
        self._device, self._owner = mx.default_device(), threading.get_ident()

    def cut(self, contents: Pixels | Samples, digest: str) -> list[tuple[int, ...] | Media]:
        assert isinstance(contents, Pixels)
        pixels = contents
        if max(pixels.width, pixels.height) > _LONGEST * min(pixels.width, pixels.height):
            size = f"{pixels.width}x{pixels.height}"
            raise BadRequest(f"The image is too elongated: {size}.", hint="Send part of it.")
        image = Image.frombytes("RGB", (pixels.width, pixels.height), pixels.rgb)
        try:
            with self._cutting:  # the tokenizer is not thread-safe
                tokens, arrays = self._model.process(image, self._most_cells)
            return list(self._parts(tokens, arrays, digest))
        except BadRequest:
            raise
        except Exception as error:  # an invalid file can cause any exception in processors
            why = " ".join(str(error).split())[:200]
            raise BadRequest(
                f"This model cannot process the image: {why}", hint="Send another one."
            ) from error

    def _parts(
        self, tokens: list[int | None], arrays: Arrays, digest: str
    ) -> Iterator[tuple[int, ...] | Media]:
        number = 0
        for is_cell, group in groupby(tokens, lambda token: token is None):
            run = list(group)
            if not is_cell:
                yield tuple(token for token in run if token is not None)
                continue
            if len(run) > MOST_CELLS:
                raise BadRequest(
                    f"The image takes {len(run)} tokens; the limit is {MOST_CELLS}.",
                    hint="Send a smaller image.",
                )
            piece = self._model.family.piece(arrays, number)
            content = f"{digest} {number} {self._name}".encode()
            n_positions = int(self._model.offsets(len(run), piece).max()) + 1
            yield Media(media_ids(content, len(run), n_positions), self._model.sees_itself, piece)
            number += 1

    def encode(self, media: Media, *, between: Callable[[], bool]) -> Embeddings:
        def pause() -> None:
            if not between():
                raise EncodingStopped

        assert isinstance(media.piece, dict)
        mx.set_default_device(self._device)
        self._model.pause = pause
        try:
            pause()
            return self._model.embed(len(media.ids), media.piece)
        except (RuntimeError, ValueError, MemoryError) as error:
            raise DecodeFailed(
                f"MLX could not encode the image: {' '.join(str(error).split())[:300]}",
                hint="Send it again, or a smaller one.",
            ) from error
        finally:
            self._model.pause = lambda: None
            if threading.get_ident() != self._owner:
                mx.clear_streams()  # this thread's streams; the thread is about to end

    def decode(self, seq: int, start: int, media: Media, embeddings: Embeddings) -> None:
        assert isinstance(media.piece, dict)
        offsets = self._model.offsets(len(media.ids), media.piece)
        self._backend.read_media(seq, start, media, embeddings, offsets)

    def release(self, media: Media) -> None:
        """Do nothing: the pixels are plain arrays."""
