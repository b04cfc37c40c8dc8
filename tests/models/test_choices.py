"""Which of a repository's files are models, and in which quantization."""

from pathlib import PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.models.choices import RemoteFile, model_choices, quant_label
from edgechat.models.hub.names import safe_path


def choices(*names):
    return model_choices(RemoteFile(name, 100 + i, f"{i:064x}") for i, name in enumerate(names))


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("Qwen3-4B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-coder-7b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("tinyllama-1.1b-chat-v1.0.Q4_K_M.gguf", "Q4_K_M"),
        ("Llama-3.2-1B-Instruct-f16.gguf", "F16"),
        ("qwen2.5-fp16.gguf", "F16"),
        ("a-F32.gguf", "F32"),
        ("Phi-4-mini-instruct.BF16.gguf", "BF16"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ("gemma-4-26B-A4B-it-UD-Q4_K_M.gguf", "UD-Q4_K_M"),
        ("Qwen3.8-27B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("Qwen3-UD-IQ2_XXS.gguf", "UD-IQ2_XXS"),
        ("gemma-4-E4B_q4_0-it.gguf", "Q4_0"),
        ("gemma-3-270m-it-qat-Q4_0.gguf", "Q4_0"),
        ("a-IQ4_NL.gguf", "IQ4_NL"),
        ("a-Q6_K.gguf", "Q6_K"),
        ("a-Q6_K_L.gguf", "Q6_K_L"),
        ("a-Q3_K_XL.gguf", "Q3_K_XL"),
        ("a-Q4_0_4_8.gguf", "Q4_0_4_8"),
        ("a-TQ1_0.gguf", "TQ1_0"),
        ("F16/a-Q8_0.gguf", "Q8_0"),
        ("Q4_0-to-Q8_0.gguf", "Q8_0"),
        ("model.gguf", None),
        ("Q4_K_M/model.gguf", None),
        ("aQ4_0b.gguf", None),
    ],
)
def test_labels(name, label):
    (found,) = choices(name)
    assert found.quant == label == quant_label(name.removesuffix(".gguf"))


def test_every_file_of_a_folder_with_many_kinds():
    found = choices(
        "README.md",
        "gemma-4-E4B-it-Q4_K_M.gguf",
        "gemma-4-E4B-it-UD-Q4_K_M.gguf",
        "mmproj-gemma-4-E4B-it-bf16.gguf",
        "mmproj-F16.gguf",
        "gemma.mmproj-Q8_0.gguf",
        "a-vision-mmproj.gguf",
        "imatrix_unsloth.gguf",
        "a.imatrix.gguf",
        "mtp-gemma-4-E4B-it-Q4_0.gguf",
        "MTP/mtp-gemma-4-26B-A4B-it-Q8_0.gguf",
        "eagle3-gpt-oss-20b-Q8_0.gguf",
        "gpt-oss-20b-eagle3.gguf",
        "dflash-a-Q4_0.gguf",
        "dspark-a-Q4_0.gguf",
        "draft-a-Q4_0.gguf",
        "ggml-vocab-llama-bpe.gguf",
        "a-Q4_K_M.gguf.part",
        ".gguf",
    )
    assert [one.quant for one in found] == ["Q4_K_M", "UD-Q4_K_M"]


def sized(**sizes):
    return [one.name for one in model_choices(RemoteFile(f"{name}.gguf", n) for name, n in sizes.items())]


def test_a_model_named_after_its_drafting_layers_is_one():
    assert sized(**{"Qwen3.6-27B-MTP-Q4_K_M": 17}) == ["Qwen3.6-27B-MTP-Q4_K_M"]
    both = {"Qwen3.6-27B-MTP-Q4_K_M": 17, "Qwen3.6-27B-Q8_0": 29, "Qwen3.6-27B-UD-Q4_K_XL": 17}
    assert sized(**both) == sorted(both)


@pytest.mark.parametrize("head", ["a-MTP-Q8_0", "MTP/a-MTP-Q8_0", "a-mtp-Q8_0", "a.Q8_0.mtp", "mtp-a-Q8_0"])
def test_drafting_layers_alone_are_no_model(head):
    assert sized(**{head: 457, "a-Q2_K": 10_000, "a-Q8_0": 29_000}) == ["a-Q2_K", "a-Q8_0"]


def test_models_whose_names_only_resemble_a_sidecar():
    assert len(choices("Mistral-DRAFT-0.5B-Q8_0.gguf", "a-imatrix-Q4_K_M.gguf", "Smtp-Q4_0.gguf")) == 3


@given(st.randoms(use_true_random=False), st.integers(1, 12))
def test_parts_in_order_whatever_the_listing_says(shuffler, n):
    names = [f"Q6_K/L-Q6_K-{i:05}-of-{n:05}.gguf" for i in range(1, n + 1)]
    shuffled = shuffler.sample(names, n)
    files = [RemoteFile(name, 10, f"{names.index(name):064x}") for name in shuffled]
    (found,) = model_choices(files)
    assert found.file_names == tuple(names)
    assert (found.name, found.quant, found.total_bytes) == ("Q6_K/L-Q6_K", "Q6_K", 10 * n)
    assert tuple(file.sha256 for file in found.files) == tuple(f"{i:064x}" for i in range(n))


def test_an_incomplete_set_is_left_out():
    found = choices(
        "a-Q8_0-00001-of-00003.gguf",
        "a-Q8_0-00003-of-00003.gguf",
        "b-Q8_0-00000-of-00001.gguf",
        "c-Q8_0-00001-of-00000.gguf",
        "d/e-Q8_0-00001-of-00002.gguf",
        "f/e-Q8_0-00002-of-00002.gguf",
        "g-Q8_0-00001-of-00001.gguf",
    )
    assert [one.name for one in found] == ["g-Q8_0"]


def test_an_empty_file_is_no_model():
    assert model_choices([RemoteFile("a-Q4_0.gguf", 0)]) == ()


@pytest.mark.parametrize(
    "name",
    ["", "..", "a/../b", "/a", "a//b", "a/", "./a", "C:a", "c:/a", r"a\b", r"..\a", "a\0b", "a\nb", "\x1b[2J",
     "a" * 256, "a/" * 600 + "b", "\ud800"],
)  # fmt: skip
def test_unsafe_names(name):
    assert not safe_path(name)


@given((st.text("aC./\\:~ ", max_size=9) | st.text(max_size=40)).filter(safe_path))
def test_safe_names_stay_in_their_folder(name):
    for kind in (PurePosixPath, PureWindowsPath):
        path = kind(name)
        assert not path.is_absolute()
        assert not path.drive
        assert ".." not in path.parts
