"""Model folders: reads their vocabularies, and loads their weights with mlx-lm, translating its errors."""

# ruff: noqa: D102  (base.py documents the methods of its protocols)

from __future__ import annotations

import contextlib
import importlib.util
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
from mlx.utils import tree_flatten
from mlx_lm.utils import MODEL_REMAPPING, load_model
from tokenizers import Tokenizer

from edgechat.base.errors import DecodeFailed, LoadFailed, OutOfMemory
from edgechat.models.formats.mlx.config import Config, bounded, parse_json

_USE_GGUF = "Use a GGUF file of the model: --backend llama.cpp"
DOWNLOAD_AGAIN = "Download the model again, or use another model (`edgechat run guide` always works)."
_PROGRESS_BYTES = 64 * 2**20  # bytes between progress reports
_OUT_OF_MEMORY = re.compile(
    r"std::bad_alloc"
    r"|(?:\[[\w:]*malloc\w*\] )?(?:Unable to allocate \d+ bytes|Resource limit \(\d+\) exceeded"
    r"|Attempting to allocate \d+ bytes which is greater than the maximum allowed buffer size of \d+ bytes"
    r")\.?"
    r"|\[METAL\] Command buffer execution failed: Insufficient Memory \(\w+:\w+\)"
    r"|cudaMalloc\w*\([^'\"]*\) failed: out of memory"
)
"""MLX's messages when it runs out of memory, for which it has no exception. They must match in full, since
tensor names may contain anything.
"""


def load_folder(folder: Path, name: str, on_progress: Callable[[float], None]) -> Any:
    """Load a model and its weights without running code from its folder. name: the model's name in messages.

    Raises LoadFailed or OutOfMemory.
    """
    with load_errors(name):
        model, _ = load_model(folder, lazy=True, trust_remote_code=False)
        read_weights(model, on_progress)
    return model


def knows(kind: str) -> bool:
    """Return whether mlx-lm supports a `model_type`."""
    name = MODEL_REMAPPING.get(kind, kind)
    return name.isidentifier() and importlib.util.find_spec(f"mlx_lm.models.{name}") is not None


def read_weights(model: Any, on_progress: Callable[[float], None]) -> None:
    """Read the weights of a lazily loaded model."""
    tree: Any = tree_flatten(model.parameters())
    weights: list[mx.array] = [array for _, array in tree]
    total, done, batch = sum(array.nbytes for array in weights), 0, []
    for array in weights:
        batch.append(array)
        done += array.nbytes
        if sum(pending.nbytes for pending in batch) >= _PROGRESS_BYTES or array is weights[-1]:
            mx.eval(batch)
            on_progress(done / max(total, 1))
            batch = []


@contextlib.contextmanager
def load_errors(name: str) -> Iterator[None]:
    """Translate errors from MLX and mlx-lm about untrusted files into LoadFailed or OutOfMemory."""
    try:
        yield
    except (LoadFailed, DecodeFailed):
        raise
    except MemoryError as error:
        raise OutOfMemory(f"There is not enough memory for {name}.") from error
    except Exception as error:  # an invalid file can cause any exception in mlx-lm
        message = " ".join(str(error).split())[:300] or type(error).__name__
        if _OUT_OF_MEMORY.fullmatch(message):
            raise OutOfMemory(f"There is not enough memory for {name}: {message}") from error
        is_supported = "not supported" not in message
        raise LoadFailed(
            f"MLX cannot load {name}: {message}", hint=DOWNLOAD_AGAIN if is_supported else _USE_GGUF
        ) from error


_MOST_PADDING = 128  # maximum difference in vocabulary size, since some vocabularies are padded
_LARGEST = 64 * 2**20  # maximum size of a tokenizer file in bytes; the largest are 35 MB
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot|>"),
    *("<end_of_turn>", "<turn|>", "<|return|>", "<|call|>", "</s>", "<eos>"),
)
"""Control tokens that end a turn even if the files do not say so; llama.cpp has a similar list."""


class _Added(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _TokenizerFile(msgspec.Struct):
    """The parts of tokenizer.json that are used here."""

    added_tokens: list[_Added] = []
    decoder: Any = None


_INFILL = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)
"""Fill-in-the-middle tokens used by Qwen and CodeGemma, by StarCoder and Granite, and by DeepSeek."""


class FolderVocabulary:
    """The vocabulary in a model's folder."""

    def __init__(self, folder: Path, size: int, config: Config) -> None:
        """size: width of a row of logits. Raises LoadFailed or ModelFileError."""
        self.size = size
        raw = _read(folder / "tokenizer.json")
        try:
            tokenizer_file = msgspec.json.decode(raw, type=_TokenizerFile)
            self._tokenizer = Tokenizer.from_buffer(raw)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # tokenizers has no exception of its own, and raises Rust panics
            why = " ".join(str(error).split())[:200]
            raise LoadFailed(
                f"The tokenizer of {config.name} cannot be used: {why}", hint=DOWNLOAD_AGAIN
            ) from error
        # Some files still contain these settings from training.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        tokenizer_config = _read_json(folder / "tokenizer_config.json")
        self._special = {token.id: token.content for token in tokenizer_file.added_tokens if token.special}
        self._added = {token.id: token.content for token in tokenizer_file.added_tokens}
        self._is_byte_level = "ByteLevel" in _decoder_types(tokenizer_file.decoder)
        self._pieces: dict[int, bytes] = {}
        self._lock = threading.Lock()
        self.bos = _text(tokenizer_config.get("bos_token"))
        self.eos = _text(tokenizer_config.get("eos_token"))
        self._bos_id = self._tokenizer.token_to_id(self.bos) if self.bos else None
        self._adds_bos = self._bos_id is not None and self._wants_bos(tokenizer_config)
        generation = _read_json(folder / "generation_config.json")
        named_ends = (*_end_ids(config.whole), *_end_ids(config.text), *_end_ids(generation))
        special = {text: token for token, text in self._special.items()}
        usual_ends = [special[text] for text in (self.eos, *_ENDS) if text in special]
        if special.keys() >= {
            "<|return|>",
            "<|call|>",
        }:  # in gpt-oss, <|end|> ends a thought before the answer
            usual_ends = [token for token in usual_ends if token != special.get("<|end|>")]
        self._ends = frozenset((*named_ends, *usual_ends))

    def _wants_bos(self, tokenizer_config: dict[str, Any]) -> bool:
        adds_bos = tokenizer_config.get("add_bos_token")
        return (
            adds_bos if isinstance(adds_bos, bool) else self._tokenizer.encode("").ids[:1] == [self._bos_id]
        )

    def tokenize(self, text: str, *, bos: bool, special: bool) -> list[int]:
        clean = text.encode("utf-8", "replace").decode()
        with self._lock:  # the setting is shared by all threads
            self._tokenizer.encode_special_tokens = not special
            ids: list[int] = self._tokenizer.encode(clean, add_special_tokens=False).ids
        # Some tokenizers have tokens, such as image tokens, that have no row in the model.
        tokens = [token for token in ids if token < self.size]
        if bos and self._adds_bos and self._bos_id is not None and tokens[:1] != [self._bos_id]:
            tokens.insert(0, self._bos_id)
        return tokens

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if token in self._special:
            return self._special[token].encode() if special else b""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._bytes(token)
        return piece

    def _bytes(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        text = self._tokenizer.id_to_token(token)
        if text is None:  # rows of logits may be padded
            return b""
        if self._is_byte_level:
            encoded = bytes(_BYTES[char] for char in text if char in _BYTES)
            return encoded if len(encoded) == len(text) else text.encode()
        if byte := _BYTE.fullmatch(text):
            return bytes.fromhex(byte[1])
        return text.replace("▁", " ").encode()

    def control_texts(self) -> list[str]:
        return list(self._special.values())

    def is_end(self, token: int) -> bool:
        return token in self._ends

    def infill(self) -> tuple[int, int, int] | None:
        added = {text: token for token, text in self._added.items()}
        names = next((names for names in _INFILL if added.keys() >= set(names)), None)
        return None if names is None else (added[names[0]], added[names[1]], added[names[2]])

    def misfit(self, other: FolderVocabulary) -> str:
        """Return how the other vocabulary's tokens differ from this one's, or '' if they are the same."""
        if self._is_byte_level != other._is_byte_level:
            return "its tokenizer is of a different type"
        if self._adds_bos != other._adds_bos or (self._adds_bos and self._bos_id != other._bos_id):
            return "its BOS token is different"
        if abs(self.size - other.size) > _MOST_PADDING:
            return f"its vocabulary has {other.size} tokens, not {self.size}"
        own, theirs = self._texts, other._texts
        different = [token for token in own.keys() & theirs.keys() if own[token] != theirs[token]]
        return f"its token {min(different)} is different" if different else ""

    @cached_property
    def _texts(self) -> dict[int, str]:
        return {token: text for text, token in self._tokenizer.get_vocab(with_added_tokens=True).items()}


def _read(path: Path) -> bytes:
    try:
        return bounded(path, _LARGEST)
    except OSError as error:
        why = error.strerror or str(error)
        raise LoadFailed(f"{path.name} of this model cannot be read: {why}.", hint=DOWNLOAD_AGAIN) from error


def _read_json(path: Path) -> dict[str, Any]:
    """Return the contents of a JSON file, or an empty dict if it does not exist."""
    return parse_json(_read(path), path.name) if path.is_file() else {}


def _text(value: Any) -> str:
    """Return the text of a token that is given as a string or in a table."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def _end_ids(table: Mapping[str, Any]) -> Iterator[int]:
    """Yield the ids of the end tokens in a table, which gives a single id or a list."""
    ids = table.get("eos_token_id")
    for token in ids if isinstance(ids, list) else [ids]:
        if isinstance(token, int):
            yield token


def _decoder_types(decoder: Any) -> set[str]:
    if not isinstance(decoder, dict):
        return set()
    types = {str(decoder.get("type"))}
    parts = decoder.get("decoders")
    for part in parts if isinstance(parts, list) else []:
        types |= _decoder_types(part)
    return types


def _byte_letters() -> dict[str, int]:
    """Return the byte that each character represents in a byte-level vocabulary (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain}
    return letters | {chr(256 + n): byte for n, byte in enumerate(rest)}


_BYTES = _byte_letters()
