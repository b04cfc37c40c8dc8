"""Small real models with random weights: describe one with a `Spec`, and `build` writes it once."""

from __future__ import annotations

import fnmatch
import hashlib
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Value

from tests.kit import weights
from tests.kit.shapes import DENSE, EMBEDDERS, KINDS, RANKED, RERANKERS, Shape, Tensor, metadata, tensors
from tests.kit.tokenizers import (
    CHATML,
    N_BYTES_VOCAB,
    RERANK,
    START,
    KeyValue,
    byte_tokenizer,
    copied_tokenizer,
    n_tokens,
    piece_tokenizer,
)

MODELS_DIR = Path(__file__).parents[2] / ".models"
FORMAT = 1
"""Part of every cached file's name: raise it when the same Spec would give different bytes."""

FILE_TYPES = {Type.F32: 0, Type.F16: 1, Type.Q4_0: 2, Type.Q8_0: 7, Type.Q4_K: 15, Type.Q6_K: 18}

Q4_K_M: Mapping[str, str] = {
    "output.weight": "Q6_K",
    "blk.*.attn_v.weight": "Q6_K",
    "blk.*.ffn_down*.weight": "Q6_K",
}
"""For `Spec.types`, with weights="Q4_K". Close to the real mixture, in which half of these are Q6_K."""


@dataclass(frozen=True, slots=True)
class Spec:
    """Everything that determines a model's bytes."""

    shape: Shape = DENSE
    weights: str = "F32"
    """F32, F16, Q8_0, Q4_0, Q4_K or Q6_K; for MLX, those in tests/kit/mlx.py."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Other types for tensors, by name pattern; includes norms if the pattern matches them."""
    seed: int = 1
    n_vocab: int = N_BYTES_VOCAB
    """Vocabulary size of the byte tokenizer, which is padded up to it."""
    pieces: bool = False
    """Use a tokenizer of pieces instead, as SentencePiece makes them, with bytes as a fallback."""
    tokenizer: Path | None = None
    """A GGUF file to copy the tokenizer from instead."""
    chat_template: str | None = CHATML
    """None: the one that comes with a copied tokenizer."""
    logit_scale: float = 4.0
    """Standard deviation of the logits; higher is more peaked."""
    mute: tuple[int, ...] = ()
    """Ids whose logit is always 0, so that greedy decoding (almost) never chooses them."""
    damped: Mapping[int, float] = field(default_factory=dict)
    """Factors for what layers add to the residual stream, by layer."""
    name: str = "kit"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Metadata to set; None removes a key. Numbers become UINT32 and FLOAT32."""


def tiny(kind: str = "dense", *, folder: Path = MODELS_DIR, **changes: Any) -> Path:
    """Return the path of a tiny model: dense, qwen3, windowed, hybrid or moe; `changes` apply to its Spec.

    bert and qwen3-embedding make embeddings; bert-reranker and qwen3-reranker score pairs of texts.
    """
    shape = (KINDS | EMBEDDERS | RERANKERS)[kind]
    return build(Spec(shape=shape, name=f"tiny-{kind}", **changes), folder=folder)


def build(spec: Spec, *, folder: Path = MODELS_DIR) -> Path:
    """Return the path of the model that `spec` describes, writing it first if necessary."""
    name = f"{spec.name}-{spec.weights}-{fingerprint(spec)}.gguf"
    return made(folder / name, lambda path: write(spec, path))


def made(path: Path, write: Callable[[Path], None]) -> Path:
    """Return `path`; if it does not exist, have `write` create the file or folder.

    Safe if other processes create the same path: it appears whole or not at all.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".part-") as part:
        write(Path(part, path.name))
        try:
            os.replace(Path(part, path.name), path)
        except OSError:
            if not path.is_dir():  # otherwise another process was faster
                raise
    return path


def fingerprint(spec: Spec) -> str:
    """Return a short hash of everything that determines the model's bytes."""
    frozen = replace(spec, types=sorted(spec.types.items()), damped=sorted(spec.damped.items()))  # type: ignore[arg-type]
    digest = hashlib.sha256(f"{FORMAT} {replace(frozen, tokenizer=None)!r}".encode())
    if spec.tokenizer:
        digest.update(spec.tokenizer.read_bytes())
    return digest.hexdigest()[:12]


def write(
    spec: Spec,
    path: Path,
    *,
    split_max_tensors: int = 0,
    tokenizer: list[KeyValue] | None = None,
    data: Callable[[Spec, Tensor, Type], weights.Bytes] | None = None,
    beside: Sequence[Tensor] = (),
) -> None:
    """Write the model to `path`, one tensor at a time.

    split_max_tensors: spread it over files with this many tensors, `<stem>-00001-of-0000N.gguf`. tokenizer,
    data: replacements for the spec's tokenizer and for `data_of`. beside: tensors to add, in order.
    """
    tokenizer = tokenizer or tokenizer_of(spec)
    table = table_of(spec, n_tokens(tokenizer))
    if beside:
        table = sorted([*table, *beside], key=lambda tensor: tensor.name)
    architecture = spec.overrides.get("general.architecture", spec.shape.arch)
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split_max_tensors)
    for key, value, kind, sub in _key_values(spec, tokenizer):
        writer.add_key_value(key, value, kind, sub)
    for tensor in table:
        kind_ = type_of(spec, tensor)
        size = weights.n_bytes(tensor.shape, kind_)
        writer.add_tensor_info(tensor.name, tensor.shape[::-1], np.dtype(np.float32), size, raw_dtype=kind_)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in table:
            writer.write_tensor_data((data or data_of)(spec, tensor, type_of(spec, tensor)))
    finally:
        writer.close()


def type_of(spec: Spec, tensor: Tensor) -> Type:
    """Return the type to write a tensor in."""
    for pattern, kind in spec.types.items():
        if fnmatch.fnmatch(tensor.name, pattern):
            return Type[kind]
    return Type.F32 if tensor.plain or tensor.gain is None else Type[spec.weights]


def data_of(spec: Spec, tensor: Tensor, kind: Type) -> weights.Bytes:
    """Return a tensor as raw bytes, uint8 [rows, bytes per row]."""
    if tensor.gain is None:
        return weights.full(tensor.shape, kind, tensor.fill)
    std = tensor.gain / math.sqrt(tensor.shape[0])
    data = weights.matrix(spec.seed, tensor.name, tensor.shape, kind, std)
    if tensor.name == spec.shape.logits_of and spec.mute:
        data[list(spec.mute)] = 0
    return data


def tokenizer_of(spec: Spec) -> list[KeyValue]:
    """Return the metadata for the model's tokenizer."""
    if spec.tokenizer:
        return copied_tokenizer(spec.tokenizer)
    return piece_tokenizer() if spec.pieces else byte_tokenizer(spec.n_vocab)


def table_of(spec: Spec, size: int | None = None) -> list[Tensor]:
    """Return every tensor of the model. size: vocabulary size, by default that of the spec's tokenizer."""
    size = size or n_tokens(tokenizer_of(spec))
    return list(tensors(spec.shape, size, logit_scale=spec.logit_scale, damped=dict(spec.damped)))


def _key_values(spec: Spec, tokenizer: list[KeyValue]) -> Iterator[KeyValue]:
    found: dict[str, KeyValue] = {}
    plain: dict[str, Any] = {"general.name": spec.name, "general.file_type": FILE_TYPES[Type[spec.weights]]}
    plain |= {f"{spec.shape.arch}.{key}": value for key, value in metadata(spec.shape).items()}
    plain[f"{spec.shape.arch}.vocab_size"] = n_tokens(tokenizer)
    if spec.shape.pooling:  # [CLS] and [SEP], or an end token
        plain["tokenizer.ggml.token_type_count"] = spec.shape.token_types
        tokenizer = [one for one in tokenizer if one[0] != "tokenizer.ggml.add_bos_token"]
        plain |= {
            "tokenizer.ggml.add_bos_token": spec.shape.arch == "bert",
            "tokenizer.ggml.add_eos_token": True,
        }
    if spec.shape.pooling == RANKED and spec.shape.arch == "bert":
        plain |= {"tokenizer.ggml.add_sep_token": True, "tokenizer.ggml.seperator_token_id": START}
    elif spec.shape.pooling == RANKED:
        plain["tokenizer.chat_template.rerank"] = RERANK
    for key, value in plain.items():
        found[key] = typed(key, value)
    found |= {entry[0]: entry for entry in tokenizer}
    if spec.chat_template is not None:
        found["tokenizer.chat_template"] = typed("tokenizer.chat_template", spec.chat_template)
    for key, value in spec.overrides.items():
        if value is None:
            found.pop(key, None)
        elif key != "general.architecture":  # the writer adds that one first
            found[key] = typed(key, value)
    yield from found.values()


def typed(key: str, value: Any) -> KeyValue:
    """Return a metadata entry, with the most obvious type for its value."""
    if isinstance(value, list):
        return key, value, Value.ARRAY, typed(key, value[0])[2]
    kinds = {bool: Value.BOOL, int: Value.UINT32, float: Value.FLOAT32, str: Value.STRING}
    kind = kinds[type(value)]
    if kind is Value.UINT32 and value < 0:
        kind = Value.INT32
    return key, value, kind, None
