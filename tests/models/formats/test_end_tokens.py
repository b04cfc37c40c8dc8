"""The tokens that end a reply, as files list them."""

import pytest

from edgechat.models.formats.gguf import read_header
from edgechat.models.formats.header import MAX_ENDS
from tests.kit import tiny
from tests.kit.tokenizers import END, N_BYTES_VOCAB

LIST = "tokenizer.ggml.eos_token_ids"


def header(tmp_path, listed, **more):
    overrides = {LIST: listed} | {f"tokenizer.ggml.{key}": value for key, value in more.items()}
    return read_header(tiny("dense", folder=tmp_path, overrides=overrides))


@pytest.mark.parametrize(
    ("listed", "ends", "note"),
    [
        (None, (), ""),
        ([END, 65, 66, 65], (END, 65, 66), ""),
        ([-1, 65], (65,), "1 of the 2 end tokens"),
        ([N_BYTES_VOCAB, N_BYTES_VOCAB - 1], (N_BYTES_VOCAB - 1,), "1 of the 2 end tokens"),
        ([65.0, 66.0], (), "2 of the 2 end tokens"),
        (["65"], (), "1 of the 1 end tokens"),
        ([True], (), "1 of the 1 end tokens"),
        (list(range(MAX_ENDS + 1)), (), f"lists {MAX_ENDS + 1} end tokens"),
        ([1] * 2000, (), "lists 2000 end tokens"),
        (65, (), ""),
    ],
)
def test_the_ids_of_the_list_are_tokens_or_left_out_with_a_word(tmp_path, listed, ends, note):
    found, why = header(tmp_path, listed).listed_ends
    assert found == ends
    assert note in why
    assert bool(why) == bool(note)


def test_single_ends_and_those_of_the_list_are_all_ends(tmp_path):
    assert header(tmp_path, [66, 65], eot_token_id=67, eom_token_id=9999).ends == (65, 66, 67, END)
