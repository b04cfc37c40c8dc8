"""Tokens to bytes and back, by the tokenizer.json that lies beside the weights."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from edgechat.base.errors import LoadFailed
from edgechat.engine.backends.mlx.loading import AGAIN
from edgechat.models.formats.mlx.config import Config, bounded, parse_json

_MORE = 128
"""Tokens that one of two vocabularies may have more: some are padded."""
_LARGEST = 64 * 2**20
"""Bytes of a tokenizer; the largest have 35 MB."""
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot|>"),
    *("<end_of_turn>", "<turn|>", "<|return|>", "<|call|>", "</s>", "<eos>"),
)
"""Control tokens that end a turn, whether the files say so or not; llama.cpp has such a list too."""


class _Added(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _Told(msgspec.Struct):
    """What we read of tokenizer.json ourselves."""

    added_tokens: list[_Added] = []
    decoder: Any = None


_INFILL = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)
"""Before a prefix, a suffix and the middle: of Qwen and CodeGemma, of StarCoder and Granite, of DeepSeek."""


class FolderVocabulary:
    """The vocabulary of a model's folder."""

    def __init__(self, folder: Path, size: int, config: Config) -> None:
        """size: width of a row of logits. Raises LoadFailed, or ModelFileError."""
        self.size = size
        raw = _read(folder / "tokenizer.json")
        try:
            told = msgspec.json.decode(raw, type=_Told)
            self._tokenizer = Tokenizer.from_buffer(raw)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # tokenizers raises nothing more special, and panics of Rust's
            why = " ".join(str(error).split())[:200]
            raise LoadFailed(f"The tokenizer of {config.name} cannot be used: {why}", hint=AGAIN) from error
        # Of the training that some files come from.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        about = _table(folder / "tokenizer_config.json")
        self._special = {one.id: one.content for one in told.added_tokens if one.special}
        self._added = {one.id: one.content for one in told.added_tokens}
        self._is_byte_level = "ByteLevel" in _kinds(told.decoder)
        self._pieces: dict[int, bytes] = {}
        self._lock = threading.Lock()
        self.bos = _text(about.get("bos_token"))
        self.eos = _text(about.get("eos_token"))
        self._bos_id = self._tokenizer.token_to_id(self.bos) if self.bos else None
        self._adds_bos = self._bos_id is not None and self._wants_bos(about)
        generation = _table(folder / "generation_config.json")
        named = (*_ids(config.whole), *_ids(config.text), *_ids(generation))
        special = {text: token for token, text in self._special.items()}
        known = [special[text] for text in (self.eos, *_ENDS) if text in special]
        if special.keys() >= {"<|return|>", "<|call|>"}:  # gpt-oss ends its thought so, and then answers
            known = [token for token in known if token != special.get("<|end|>")]
        self._ends = frozenset((*named, *known))

    def _wants_bos(self, about: dict[str, Any]) -> bool:
        told = about.get("add_bos_token")
        return told if isinstance(told, bool) else self._tokenizer.encode("").ids[:1] == [self._bos_id]

    def tokenize(self, text: str, *, bos: bool, special: bool) -> list[int]:
        """Return the ids of `text`; see `Vocabulary.tokenize`."""
        clean = text.encode("utf-8", "replace").decode()
        with self._lock:  # it is the tokenizer's state, and threads share that
            self._tokenizer.encode_special_tokens = not special
            found: list[int] = self._tokenizer.encode(clean, add_special_tokens=False).ids
        # Some tokenizers know tokens that the model has no row for: of pictures, say.
        tokens = [token for token in found if token < self.size]
        if bos and self._adds_bos and self._bos_id is not None and tokens[:1] != [self._bos_id]:
            tokens.insert(0, self._bos_id)
        return tokens

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of a token; see `Vocabulary.piece`."""
        if token in self._special:
            return self._special[token].encode() if special else b""
        found = self._pieces.get(token)
        if found is None:
            found = self._pieces[token] = self._bytes(token)
        return found

    def _bytes(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        text = self._tokenizer.id_to_token(token)
        if text is None:  # rows of logits may be padded
            return b""
        if self._is_byte_level:
            known = bytes(_BYTES[char] for char in text if char in _BYTES)
            return known if len(known) == len(text) else text.encode()
        if byte := _BYTE.fullmatch(text):
            return bytes.fromhex(byte[1])
        return text.replace("▁", " ").encode()

    def control_texts(self) -> list[str]:
        """See `Vocabulary.control_texts`."""
        return list(self._special.values())

    def is_end(self, token: int) -> bool:
        """Say whether this token ends a generation."""
        return token in self._ends

    def infill(self) -> tuple[int, int, int] | None:
        """Return the tokens of one of the usual names; see `Vocabulary.infill`."""
        added = {text: token for token, text in self._added.items()}
        found = next((names for names in _INFILL if added.keys() >= set(names)), None)
        return None if found is None else (added[found[0]], added[found[1]], added[found[2]])

    def misfit(self, other: FolderVocabulary) -> str:
        """Return why tokens of the other vocabulary are not tokens of this one; '' where they are."""
        if self._is_byte_level != other._is_byte_level:
            return "its tokenizer is of a different type"
        if self._adds_bos != other._adds_bos or (self._adds_bos and self._bos_id != other._bos_id):
            return "its BOS token is different"
        if abs(self.size - other.size) > _MORE:
            return f"its vocabulary has {other.size} tokens, not {self.size}"
        mine, theirs = self._texts, other._texts
        odd = [token for token in mine.keys() & theirs.keys() if mine[token] != theirs[token]]
        return f"its token {min(odd)} is different" if odd else ""

    @cached_property
    def _texts(self) -> dict[int, str]:
        return {token: text for text, token in self._tokenizer.get_vocab(with_added_tokens=True).items()}


def _read(path: Path) -> bytes:
    try:
        return bounded(path, _LARGEST)
    except OSError as error:
        why = error.strerror or str(error)
        raise LoadFailed(f"{path.name} of this model cannot be read: {why}.", hint=AGAIN) from error


def _table(path: Path) -> dict[str, Any]:
    """Return what a file says that need not be there."""
    return parse_json(_read(path), path.name) if path.is_file() else {}


def _text(value: Any) -> str:
    """Return a token's text as these files write it: as such, or in a table."""
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else ""


def _ids(table: Mapping[str, Any]) -> Iterator[int]:
    """Yield the end tokens that a table names: one, or a list of them."""
    found = table.get("eos_token_id")
    for one in found if isinstance(found, list) else [found]:
        if isinstance(one, int):
            yield one


def _kinds(decoder: Any) -> set[str]:
    """Return the types of a decoder and of those that it is made of."""
    if not isinstance(decoder, dict):
        return set()
    found = {str(decoder.get("type"))}
    parts = decoder.get("decoders")
    for part in parts if isinstance(parts, list) else []:
        found |= _kinds(part)
    return found


def _byte_letters() -> dict[str, int]:
    """Return the byte that each letter of a byte-level vocabulary stands for (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    found = {chr(byte): byte for byte in plain}
    return found | {chr(256 + n): byte for n, byte in enumerate(rest)}


_BYTES = _byte_letters()
