"""A model's header: its metadata and its tensor table, without the weights.

The metadata keys are GGUF's. An MLX model's config is translated into them, so the planner needs to know only
one format.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeGuard

from edgechat.base.errors import ModelFileError
from edgechat.models.formats.quants import FILE_TYPES, GgmlType

ENCODERS = frozenset(
    {
        "bert",
        "eurobert",
        "gemma-embedding",
        "jina-bert-v2",
        "jina-bert-v3",
        "modern-bert",
        "neo-bert",
        "nomic-bert",
        "nomic-bert-moe",
    }
)
"""Architectures with neither a KV cache nor logits, which read a whole text at once (see create_memory in
llama.cpp).
"""
POOLED_MEAN, POOLED_LAST, POOLED_RANK = 1, 3, 4
"""Values of llama.cpp's enum llama_pooling_type. 0 means no pooling, and 2 means the first token."""

Scalar = int | float | bool | str
Format = Literal["gguf", "mlx", "peft"]
"""Formats of models and adapters: a GGUF file or its shards (gguf), a folder with config.json, safetensors
and a tokenizer (mlx), or a folder with a LoRA adapter saved by PEFT (peft). No header has the format peft.
"""


@dataclass(frozen=True, slots=True)
class GgufArray:
    """A metadata array. `values` is None if there are more than 1024 elements, as in a vocabulary."""

    type: str
    """Type of the elements: 'string', 'uint32', 'float32', ..."""
    count: int
    values: tuple[Scalar, ...] | None


Value = Scalar | GgufArray


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """An entry in the tensor table."""

    name: str
    shape: tuple[int, ...]
    """Dimensions in ggml's order, with the contiguous dimension first."""
    type: GgmlType
    offset: int
    """Offset in bytes from the start of the file's tensor data."""
    n_bytes: int

    @property
    def n_elements(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class ModelHeader:
    """A model's header. Properties raise ModelFileError for missing or invalid metadata.

    Sizes are in bytes. Lengths and counts are numbers of tokens, layers, heads or channels.
    """

    path: str
    """Name of the file, for use in messages."""
    version: int
    metadata: dict[str, Value]
    tensors: tuple[ModelTensor, ...]
    data_offset: int
    alignment: int
    file_size: int
    format: Format = "gguf"
    table_offset: int = 0
    """Offset of the tensor table in a GGUF file, in bytes."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Types of the metadata in a GGUF file, as named by the format: 'uint32', 'string', 'array', ..."""
    vision_tensors: tuple[ModelTensor, ...] = ()
    """Tensors of the vision tower in an MLX model's folder, which are not included in `tensors`."""

    @cached_property
    def architecture(self) -> str:
        """The architecture's name in llama.cpp: 'llama', 'qwen3', ..."""
        name = self.text("general.architecture")
        if not name:
            raise self._lacks("general.architecture")
        return name

    @cached_property
    def name(self) -> str | None:
        """The model's name according to its metadata."""
        return self.text("general.name")

    @cached_property
    def licence(self) -> str | None:
        """The licence, usually an SPDX identifier in lowercase."""
        return self.text("general.license")

    @cached_property
    def chat_template(self) -> str | None:
        """Jinja source of the chat template, or None if the model is not made for chat."""
        return self.text("tokenizer.chat_template")

    @cached_property
    def quant(self) -> str | None:
        """The quantization according to the metadata: 'Q4_K_M', '4bit'."""
        if self.format == "mlx":
            return self.text("mlx.quantization")
        file_type = self.metadata.get("general.file_type")
        return FILE_TYPES.get(file_type) if isinstance(file_type, int) else None

    @cached_property
    def end(self) -> int:
        """Offset from the start of a GGUF file to the end of its last tensor, in bytes."""
        last = self.tensors[-1] if self.tensors else None
        return self.data_offset + (last.offset + last.n_bytes if last else 0)

    @cached_property
    def n_params(self) -> int:
        """Total number of weights in all tensors."""
        return sum(tensor.n_elements for tensor in self.tensors)

    @cached_property
    def weights_bytes(self) -> int:
        """Total size of all tensors, in bytes."""
        return sum(tensor.n_bytes for tensor in self.tensors)

    @cached_property
    def n_layers(self) -> int:
        """Number of blocks, including any for multi-token prediction (MTP)."""
        n = self.number("block_count")
        if not 0 < n <= MAX_LAYERS:
            raise ModelFileError(f"{self.path} says it has {n} layers; the limit is {MAX_LAYERS}.")
        return n

    @cached_property
    def context_length(self) -> int:
        """Context length used in training, in tokens."""
        return self.number("context_length")

    @cached_property
    def embedding_length(self) -> int:
        """Number of channels in the residual stream."""
        return self.number("embedding_length")

    @cached_property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        return tokens.count if isinstance(tokens, GgufArray) else self.number("vocab_size")

    @cached_property
    def listed_ends(self) -> tuple[tuple[int, ...], str]:
        """The valid ids in `tokenizer.ggml.eos_token_ids`, and a sentence about any invalid ones (or '').

        Ollama's model files have this array if there are several end tokens. llama.cpp reads only single ids.
        """
        found = self.metadata.get("tokenizer.ggml.eos_token_ids")
        if not isinstance(found, GgufArray):
            return (), ""
        if found.values is None or found.count > MAX_ENDS:
            return (
                (),
                f"The file lists {found.count} end tokens, an implausible number; they are ignored.",
            )
        ends = [value for value in found.values if self._is_token(value)]
        n_odd, n = found.count - len(ends), found.count
        note = (
            f"{n_odd} of the {n} end tokens listed in the file are not in the vocabulary; they are ignored."
        )
        return tuple(dict.fromkeys(ends)), note if n_odd else ""

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """All token ids that end a reply, according to the file, in ascending order."""
        single = (self.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
        return tuple(sorted({*filter(self._is_token, single), *self.listed_ends[0]}))

    def _is_token(self, value: Value | None) -> TypeGuard[int]:
        return type(value) is int and 0 <= value < self.vocab_size

    @cached_property
    def heads(self) -> tuple[int, ...]:
        """Number of attention heads in each layer."""
        return self.per_layer("attention.head_count")

    @cached_property
    def kv_heads(self) -> tuple[int, ...]:
        """Number of key and value heads in each layer, or 0 for a layer without attention."""
        return self.per_layer("attention.head_count_kv", self.heads)

    @cached_property
    def key_length(self) -> int:
        """Number of channels in each head's keys."""
        return self.number("attention.key_length", self._head_length)

    @cached_property
    def value_length(self) -> int:
        """Number of channels in each head's values."""
        return self.number("attention.value_length", self._head_length)

    @cached_property
    def sliding_window(self) -> int:
        """Window size of the layers with sliding-window attention, in tokens, or 0 if there are none."""
        return self.number("attention.sliding_window", 0)

    @cached_property
    def is_encoder(self) -> bool:
        """Whether the model is an encoder, which reads a whole text at once and generates nothing."""
        return self.architecture in ENCODERS

    @cached_property
    def pooling(self) -> int:
        """llama.cpp's number for the pooling type; 0 for a chat model.

        Encoders whose metadata does not specify a pooling type use the mean.
        """
        number = 0 if self.format == "mlx" else self.number("pooling_type", 0)
        return number or POOLED_MEAN * (self.is_encoder and self.format == "gguf")

    @cached_property
    def makes_embeddings(self) -> bool:
        """Whether it is an embedding or reranking model rather than a chat model."""
        return self.pooling > 0

    @cached_property
    def kind(self) -> ModelKind:
        """What the model is used for."""
        return "chat" if not self.pooling else "reranking" if self.pooling == POOLED_RANK else "embedding"

    @cached_property
    def reads_in_parts(self) -> bool:
        """Whether long text can be read in parts, as attention is causal and only the last output is used."""
        causal = self.shape_value("attention.causal") is not False and not self.is_encoder
        return causal and self.pooling in (0, POOLED_LAST, POOLED_RANK)

    @cached_property
    def _head_length(self) -> int:
        return self.embedding_length // max(1, *self.heads)

    def text(self, key: str) -> str | None:
        """Return a metadata string by its full key, or None if it is missing or not a string."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def shape_value(self, key: str) -> Value | None:
        """Return the metadata value for a key under the architecture's prefix, or None."""
        return self.metadata.get(f"{self.architecture}.{key}")

    def number(self, key: str, default: int | None = None) -> int:
        """Return a count stored under the architecture's prefix. It is required unless a default is given."""
        value = self.shape_value(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self._lacks(f"{self.architecture}.{key}")
        return self._checked(key, value)

    def per_layer(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Return a count for each layer. The metadata contains either a list or one count for all layers."""
        value = self.shape_value(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, GgufArray):
            return (self.number(key),) * self.n_layers
        if value.values is None or len(value.values) < self.n_layers:
            raise ModelFileError(f"{self.path} lists {value.count} {key!r} for {self.n_layers} layers.")
        return tuple(self._checked(key, item) for item in value.values[: self.n_layers])

    def _checked(self, key: str, value: Any) -> int:
        if not isinstance(value, int) or not 0 <= value <= MAX_NUMBER:
            raise ModelFileError(
                f"{self.path} has no valid number for {key!r}.", hint="Use another copy of this model."
            )
        return int(value)

    def _lacks(self, key: str) -> ModelFileError:
        return ModelFileError(
            f"{self.path} does not say what model it holds: {key!r} is missing.",
            hint="It may be only part of a model; chatting requires the language model's file.",
        )


ModelKind = Literal["chat", "embedding", "reranking"]
"""What a model produces: replies, text embeddings, or scores for texts as answers to a query."""
Modality = Literal["vision", "audio"]
SENSES: dict[Modality, str] = {"vision": "sees", "audio": "hears"}
"""Verb for each modality, describing what a model that accepts it does."""


def modalities(*, vision: bool, audio: bool) -> tuple[Modality, ...]:
    """Return the modalities whose argument is True, as a tuple."""
    return (*(("vision",) if vision else ()), *(("audio",) if audio else ()))


def senses(names: Iterable[Modality]) -> str:
    """Return the verbs for these modalities, joined: 'sees and hears'."""
    return " and ".join(SENSES[name] for name in names)


MAX_LAYERS = 512
"""Maximum number of layers, the same as in llama.cpp."""
MAX_NUMBER = 2**31 - 1
"""Largest count accepted in the metadata about a model's shape."""
MAX_ENDS = 64
"""Maximum number of tokens that end a reply. Valid files list fewer."""
MAX_PARTS = 1000
"""Maximum number of files in a split model."""

AGAIN = "Download it again: this copy is damaged or incomplete."


def show(text: str) -> str:
    """Return untrusted text, shortened and escaped for a terminal."""
    return ascii(text if len(text) <= 60 else text[:57] + "...")


def unsound(name: str, why: str) -> ModelFileError:
    """Return the error for a file that violates the format."""
    return ModelFileError(f"{name} is not valid: {why}.", hint=AGAIN)
