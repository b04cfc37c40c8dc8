"""Tokens to bytes and back, for vocabularies of bytes and of pieces."""

import json
import shutil

import pytest

from edgechat.engine.backends.mlx.folder import FolderVocabulary
from edgechat.models.formats.mlx.config import read_config
from tests.kit.build import Spec
from tests.kit.mlx import mlx_build, mlx_tiny

TEXTS = ["Hello, world", " two  spaces ", "naïve 中文 😀\n\ttab", "a" * 200, "<|im_end|> written"]


def vocabulary_of(folder, size=100_000):
    return FolderVocabulary(folder, size, read_config(folder / "config.json"))


@pytest.fixture(params=["bytes", "pieces"])
def folder(request):
    return mlx_tiny("dense") if request.param == "bytes" else mlx_build(Spec(pieces=True, name="words"))


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(folder, text):
    words = vocabulary_of(folder)
    tokens = words.tokenize(text, bos=False, special=False)
    back = b"".join(map(words.piece, tokens)).decode()
    assert back in (text, f" {text}")  # sentencepiece puts a space in front


def test_control_tokens_are_read_where_that_is_wanted_and_print_as_nothing(folder):
    words = vocabulary_of(folder)
    (mark,) = words.tokenize("<|im_end|>", bos=False, special=True)
    assert len(words.tokenize("<|im_end|>", bos=False, special=False)) > 1
    assert words.piece(mark) == b""
    assert words.piece(mark, special=True) == b"<|im_end|>"
    assert words.is_end(mark)
    assert not words.is_end(words.tokenize("a", bos=False, special=False)[-1])


def test_a_beginning_is_put_in_front_once_where_the_model_wants_it():
    words = vocabulary_of(mlx_build(Spec(pieces=True, name="words")))
    assert words.bos == "<s>"
    once = words.tokenize("a", bos=True, special=True)
    assert once[0] == 1
    assert words.tokenize("<s>a", bos=True, special=True).count(1) == 1
    plain = vocabulary_of(mlx_tiny("dense"))
    assert plain.tokenize("a", bos=True, special=True) == plain.tokenize("a", bos=False, special=True)


def test_tokens_without_a_row_are_left_out(folder):
    words = vocabulary_of(folder, size=100)
    assert max(words.tokenize("zebra ünder", bos=False, special=True), default=0) < 100
    assert vocabulary_of(folder).piece(90_000) == b""


def test_lone_surrogates_do_not_end_a_chat(folder):
    words = vocabulary_of(folder)
    assert words.tokenize("a\ud800b", bos=False, special=True) == words.tokenize(
        "a?b", bos=False, special=True
    )


def test_vocabularies_are_compared(folder, tmp_path):
    words = vocabulary_of(folder, 300)
    assert words.misfit(vocabulary_of(folder, 310)) == ""
    assert "has 900 tokens" in words.misfit(vocabulary_of(folder, 900))
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    told = json.loads((other / "tokenizer.json").read_text())
    vocab = told["model"]["vocab"]
    one, two = list(vocab)[70:72]
    vocab[one], vocab[two] = vocab[two], vocab[one]
    (other / "tokenizer.json").write_text(json.dumps(told))
    assert "is different" in words.misfit(vocabulary_of(other, 300))


def test_bytes_and_pieces_do_not_fit():
    one, other = (
        vocabulary_of(mlx_tiny("dense"), 300),
        vocabulary_of(mlx_build(Spec(pieces=True, name="words")), 300),
    )
    assert one.misfit(other)
    assert other.misfit(one)


def changed(folder, out, change):
    """Return the vocabulary of a copy whose tokenizer.json has been through `change`."""
    shutil.copytree(folder, out)
    told = json.loads((out / "tokenizer.json").read_text())
    change(told)
    (out / "tokenizer.json").write_text(json.dumps(told))
    return vocabulary_of(out)


def test_what_training_has_left_in_the_file_cuts_and_fills_nothing(folder, tmp_path):
    padding = {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
    cut = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    words = changed(folder, tmp_path / "odd", lambda told: told.update(padding=padding, truncation=cut))
    found = words.tokenize("one two three", bos=False, special=True)
    assert found == vocabulary_of(folder).tokenize("one two three", bos=False, special=True)


def test_the_end_of_a_thought_ends_no_reply_of_gpt_oss(folder, tmp_path):
    def harmony(told):
        one = told["added_tokens"][0]
        names = ("<|end|>", "<|return|>", "<|call|>")
        told["added_tokens"] += [one | {"id": 900 + n, "content": name} for n, name in enumerate(names)]
        told["model"]["vocab"] |= {name: 900 + n for n, name in enumerate(names)}

    words = changed(folder, tmp_path / "harmony", harmony)
    assert not words.is_end(900)
    assert words.is_end(901)
    assert words.is_end(902)


def test_plain_tokens_that_look_like_marks_are_text(tmp_path):
    def odd(told):
        told["model"]["vocab"] |= {"<|eot_id|>": 900, "<0xZZ>": 901}

    words = changed(mlx_build(Spec(pieces=True, name="words")), tmp_path / "odd", odd)
    assert not words.is_end(900)
    assert words.piece(901) == b"<0xZZ>"
