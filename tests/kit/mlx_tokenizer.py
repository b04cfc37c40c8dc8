"""The kit's tokenizers in the format of Hugging Face's library: tokenizer.json and accompanying files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tests.kit.tokenizers import CONTROL, END, PIECES, TEXT_END, KeyValue, byte_tokenizer, piece_tokens


def write(folder: Path, *, pieces: bool, n_vocab: int, chat_template: str | None) -> None:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json."""
    tokenizer = _of_pieces() if pieces else _of_bytes(byte_tokenizer(n_vocab))
    save(folder, tokenizer, pieces=pieces, chat_template=chat_template)


def write_bytes(folder: Path, entries: list[KeyValue], *, chat_template: str | None, **named: str) -> None:
    """Write a byte tokenizer with the tokens in a GGUF's metadata. named: special tokens to configure."""
    save(folder, _of_bytes(entries), pieces=False, chat_template=chat_template, **named)


def save(
    folder: Path, tokenizer: Tokenizer, *, pieces: bool, chat_template: str | None, **named: str
) -> None:
    """Write the files of a tokenizer."""
    tokenizer.save(str(folder / "tokenizer.json"))
    bos, eos = ("<s>", "</s>") if pieces else ("<|endoftext|>", "<|im_end|>")
    config = named | {
        "add_bos_token": pieces,
        "bos_token": bos,
        "eos_token": eos,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    if chat_template is not None:
        config["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps(special_ids(pieces=pieces)))


def special_ids(*, pieces: bool) -> dict[str, Any]:
    """Return the ids that config.json and generation_config.json name."""
    if pieces:
        return {"bos_token_id": 1, "eos_token_id": [2, piece_tokens().index("<|im_end|>")]}
    return {"bos_token_id": TEXT_END, "eos_token_id": [END, TEXT_END]}


def _of_bytes(entries: list[KeyValue]) -> Tokenizer:
    found = {key: value for key, value, *_ in entries}
    tokens, types = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [_mark(token) for token, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    )
    return tokenizer


def _of_pieces() -> Tokenizer:
    tokens = piece_tokens()
    known = set(tokens)
    merges = [
        (piece[:at], piece[at:])
        for piece in PIECES
        for at in range(1, len(piece))
        if piece[:at] in known and piece[at:] in known
    ]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens([_mark(token) for token in (*tokens[:3], *tokens[259:261])])
    return tokenizer


def _mark(token: str) -> AddedToken:
    return AddedToken(token, normalized=False, special=True)
