"""The tokens that end a reply, as a GGUF file names them beside the single ones that llama.cpp reads.

Ollama's files of models with several ends have `tokenizer.ggml.eos_token_ids`, an array.
"""

from __future__ import annotations

from typing import TypeGuard

from edgechat.models.formats.header import GgufArray, ModelHeader

_LIST = "tokenizer.ggml.eos_token_ids"
_SINGLE = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
MOST = 64
"""More ids are no ends of replies, but a damaged file."""


def listed_ends(header: ModelHeader) -> tuple[tuple[int, ...], str]:
    """Return the ids of the array, and a sentence about those that are left out; '' for none."""
    found = header.metadata.get(_LIST)
    if not isinstance(found, GgufArray):
        return (), ""
    if found.values is None or found.count > MOST:
        return (), f"The file lists {found.count} tokens that end a reply, which cannot be; they are ignored."
    ends = [value for value in found.values if _is_token(value, header)]
    n_odd = found.count - len(ends)
    note = (
        f"{n_odd} of the {found.count} ends of a reply that the file lists are no tokens; they are ignored."
    )
    return tuple(dict.fromkeys(ends)), note if n_odd else ""


def ends_of(header: ModelHeader) -> tuple[int, ...]:
    """Return all ids by which the file says that a reply ends, in ascending order."""
    single = [value for key in _SINGLE if _is_token(value := header.metadata.get(key), header)]
    return tuple(sorted({*single, *listed_ends(header)[0]}))


def _is_token(value: object, header: ModelHeader) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < header.vocab_size
