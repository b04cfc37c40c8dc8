"""A model's vocabulary in llama.cpp: converts between text and tokens, and can be compared with another."""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from functools import lru_cache, partial
from itertools import repeat

import llama_cpp.llama_cpp as lib

from edgechat.native.handles import Model

_MORE = 128
"""Compatible vocabularies may differ in size by this many tokens, because some are padded."""
_REMEMBERED = 32_768
"""Number of tokens whose bytes are cached, using 7 MB."""
_FIRST = 5
"""Compatible vocabularies may differ in up to this many of their first tokens."""


class NativeVocabulary:
    """The vocabulary of a loaded model, which must outlive it."""

    def __init__(self, model: Model, ends: Collection[int] = ()) -> None:
        """Use a model's vocabulary. ends: ids that end a reply, in addition to llama.cpp's."""
        self._vocab = model.vocab
        self.size = int(lib.llama_vocab_n_tokens(self._vocab))
        self._bos_id = int(lib.llama_vocab_bos(self._vocab))
        self._adds_bos = bool(lib.llama_vocab_get_add_bos(self._vocab)) and self._bos_id >= 0
        self.bos = self._text(self._bos_id)
        self.eos = self._text(int(lib.llama_vocab_eos(self._vocab)))
        self._piece = lru_cache(_REMEMBERED)(partial(self.piece_of, special=False))
        self._ends = frozenset(ends)
        self.is_end = lru_cache(_REMEMBERED)(self._is_end)

    def infill(self) -> tuple[int, int, int] | None:
        """Return the ids of the prefix, suffix and middle tokens for infill, or None if any is missing.

        llama.cpp takes them from the file, or else finds them by their usual names.
        """
        prefix, suffix, middle = (
            int(token_of(self._vocab))
            for token_of in (lib.llama_vocab_fim_pre, lib.llama_vocab_fim_suf, lib.llama_vocab_fim_mid)
        )
        return (prefix, suffix, middle) if min(prefix, suffix, middle) >= 0 else None

    def misfit(self, other: NativeVocabulary) -> str:
        """Return why another vocabulary's tokens cannot be used with this one, or '' if they can.

        The rule is the one that llama.cpp applies to draft models.
        """
        own, others = self._vocab, other._vocab
        if lib.llama_vocab_type(own) != lib.llama_vocab_type(others):
            return "its tokenizer is of a different type"
        for what, adds, token in (
            ("BOS", lib.llama_vocab_get_add_bos, lib.llama_vocab_bos),
            ("EOS", lib.llama_vocab_get_add_eos, lib.llama_vocab_eos),
        ):
            if adds(own) != adds(others) or (adds(own) and token(own) != token(others)):
                return f"its {what} token is different"
        if abs(self.size - other.size) > _MORE:
            return f"its vocabulary has {other.size} tokens, not {self.size}"
        text = lib.llama_vocab_get_text
        common = range(_FIRST, min(self.size, other.size))
        odd = next((token for token in common if text(own, token) != text(others, token)), None)
        return "" if odd is None else f"its token {odd} is different"

    def _text(self, token: int) -> str:
        return self.piece_of(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    def tokenize(self, text: str, *, bos: bool, special: bool) -> list[int]:
        """Return the ids of `text`; see `Vocabulary.tokenize`."""
        tokens = self._tokens(text, around=False, special=special)
        if bos and self._adds_bos and tokens[:1] != [self._bos_id]:
            tokens.insert(0, self._bos_id)
        return tokens

    def whole(self, text: str) -> list[int]:
        """Return the ids for `text`, plus the tokens that the model expects around it ([CLS], [SEP], end)."""
        return self._tokens(text, around=True, special=False)

    def _tokens(self, text: str, *, around: bool, special: bool) -> list[int]:
        raw = text.encode("utf-8", "replace")
        ids = (ctypes.c_int32 * (len(raw) + 8))()
        count = int(lib.llama_tokenize(self._vocab, raw, len(raw), ids, len(ids), around, special))
        if count < 0:
            ids = (ctypes.c_int32 * -count)()
            count = int(lib.llama_tokenize(self._vocab, raw, len(raw), ids, len(ids), around, special))
        return list(ids[:count])

    def around_pair(self) -> tuple[list[int], list[int], list[int]]:
        """Return the ids before, between and after a cross-encoder's two texts, as llama-server places them.

        These are [CLS], [SEP] and an end token, where the vocabulary requires them.
        """
        vocab = self._vocab
        eos, sep = int(lib.llama_vocab_eos(vocab)), int(lib.llama_vocab_sep(vocab))
        end = [eos if eos >= 0 else sep] if lib.llama_vocab_get_add_eos(vocab) else []
        between = [*end, sep] if lib.llama_vocab_get_add_sep(vocab) else end
        return [self._bos_id] if self._adds_bos else [], between, end

    def piece_of(self, token: int, *, special: bool) -> bytes:
        """Return the bytes of a token, without using the cache."""
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = int(lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, special))
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of a token; see `Vocabulary.piece`."""
        if token >= self.size:  # stands for part of an image
            return b""
        return self.piece_of(token, special=True) if special else self._piece(token)

    def control_texts(self) -> list[str]:
        """Return the control tokens' texts; see `Vocabulary.control_texts`. Takes 1 us per token."""
        attributes = map(lib.llama_vocab_get_attr, repeat(self._vocab), range(self.size))
        control = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN
        return [self._text(token) for token, attribute in enumerate(attributes) if attribute & control]

    def _is_end(self, token: int) -> bool:
        return token in self._ends or bool(lib.llama_vocab_is_eog(self._vocab, token))
