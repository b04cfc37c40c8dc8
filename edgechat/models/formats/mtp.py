"""Drafting layers, which read a model's hidden states: either the model's own layers (MTP) or EAGLE-3 layers.

The header states how many there are (`nextn_predict_layers`), but many files omit the layers themselves. Only
the tensor table shows whether they are present.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from edgechat.models.formats.header import GgufArray, ModelHeader, show
from edgechat.native.params import CHAINED, EAGLE_LAYERS, HANDS_OUT_INPUTS, ONE_LAYER

_EAGLE = "eagle3"
_SHARES_CACHE = "gemma4-assistant"
"""Architecture that has no KV cache of its own and reads its target's."""
_ALWAYS_ALONE = {_SHARES_CACHE, _EAGLE}
_BLOCK = re.compile(r"blk\.(\d+)\.")
_NEEDED = ("eh_proj", "enorm", "hnorm")
"""Tensors that every drafting layer has. In some models, the other tensors are shared."""
_OF_A_LAYER = re.compile(rf"blk\.(\d+)\.nextn\.({'|'.join(_NEEDED)})\.weight")


@dataclass(frozen=True, slots=True)
class HeadFile:
    """Drafting layers stored in a separate file."""

    name: str
    header: ModelHeader
    path: str = ""

    @property
    def has_own_cache(self) -> bool:
        """Whether the layers have their own KV cache. Layers for Gemma 4 read the target's instead."""
        return self.header.architecture != _SHARES_CACHE

    @property
    def kind(self) -> Literal["mtp", "eagle3"]:
        """'mtp' for the model's own layers, or 'eagle3' for layers that read the inputs of model layers."""
        return "eagle3" if self.header.architecture == _EAGLE else "mtp"


def stated_layers(header: ModelHeader) -> range:
    """Return the layers used only for drafting, according to the header. They are the last ones."""
    n = header.n_layers
    if header.architecture == _EAGLE:
        return range(n)
    return range(max(0, n - header.number("nextn_predict_layers", 0)), n)


def has_layers(header: ModelHeader) -> bool:
    """Return whether the model has drafting layers and the file contains all of them."""
    found = {
        (int(match[1]), match[2])
        for tensor in header.tensors
        if ".nextn." in tensor.name and (match := _OF_A_LAYER.fullmatch(tensor.name))
    }
    layers = stated_layers(header)
    return bool(layers) and all((layer, name) in found for layer in layers for name in _NEEDED)


def why_no_drafts(header: ModelHeader) -> str:
    """Return a sentence explaining why a model cannot draft with its own layers, or '' if it can."""
    if header.format != "gguf":
        return "MLX models cannot draft with their own layers (MTP); only GGUF files can."
    layers, architecture = stated_layers(header), header.architecture
    if not layers:
        return "The model has no drafting layers (MTP)."
    if not has_layers(header):
        return "Its own drafting layers (MTP) are missing from this file."
    fits = architecture in CHAINED or (architecture in ONE_LAYER and len(layers) == 1)
    if not fits or not layers.start:
        return f"llama.cpp cannot draft with the {len(layers)} MTP layers of this {show(architecture)} model."
    return ""


def is_head_alone(header: ModelHeader) -> bool:
    """Return whether a file contains only drafting layers."""
    if header.architecture in _ALWAYS_ALONE:
        return True
    layers = stated_layers(header)
    return bool(layers) and not any(
        (match := _BLOCK.match(tensor.name)) and int(match[1]) < layers.start for tensor in header.tensors
    )


def is_chained(header: ModelHeader) -> bool:
    """Return whether each drafting layer predicts one token further ahead than the previous one."""
    return header.architecture in CHAINED


def misfit(head: ModelHeader, model: ModelHeader) -> str:
    """Return why separate drafting layers do not fit a model, or '' if they do."""
    if not is_head_alone(head):
        return "it is a complete model"
    if head.architecture == _EAGLE:
        return _eagle_misfit(head, model)
    expected = {_SHARES_CACHE: "gemma4"}.get(head.architecture, head.architecture)
    if expected != model.architecture:
        return f"it is for {show(expected)} models, but this model is {show(model.architecture)}"
    width = head.number("embedding_length_out", head.embedding_length)
    if width != model.embedding_length:
        return f"it reads hidden states of {width} numbers, but the model's have {model.embedding_length}"
    if head.vocab_size != model.vocab_size:
        return f"its vocabulary has {head.vocab_size} tokens, not {model.vocab_size}"
    known = head.architecture in _ALWAYS_ALONE or can_draft(head)
    return "" if known else "llama.cpp cannot draft with it"


def _eagle_misfit(head: ModelHeader, model: ModelHeader) -> str:
    if model.architecture not in HANDS_OUT_INPUTS:
        return f"llama.cpp cannot draft for {show(model.architecture)} models with EAGLE-3"
    listed = head.shape_value("target_layers")
    values = (listed.values or ()) if isinstance(listed, GgufArray) else ()
    layers = [one for one in values if isinstance(one, int)]
    if not len(layers) == len(values) == EAGLE_LAYERS:
        return f"it does not say which {EAGLE_LAYERS} layers of its model it reads"
    if not all(0 <= one < model.n_layers for one in layers):
        return f"it reads layer {max(layers)}, but the model has only {model.n_layers} layers"
    width = head.number("target_hidden_size", 0)
    if width != model.embedding_length:
        return f"it reads hidden states of {width} numbers, but the model's have {model.embedding_length}"
    if head.vocab_size != model.vocab_size:
        return f"its vocabulary has {head.vocab_size} tokens, not {model.vocab_size}"
    return ""


def can_draft(header: ModelHeader) -> bool:
    """Return whether a model can draft with its own layers."""
    return not why_no_drafts(header)
