"""Which projector belongs to which model, by the names that people give them."""

import pytest

from edgechat.models.choices import RemoteFile, model_choices


def found(*names, mixed=False):
    files = [RemoteFile(name, 100) for name in names]
    return {
        choice.file_names[0]: tuple(file.name for file in choice.projectors)
        for choice in model_choices(files, mixed=mixed)
    }


@pytest.mark.parametrize(
    ("model", "projector"),
    [
        ("gemma-3-4b-it-Q4_K_M.gguf", "mmproj-model-f16.gguf"),  # ggml-org
        ("gemma-4-E4B-it-Q4_K_M.gguf", "mmproj-gemma-4-E4B-it-bf16.gguf"),
        ("Qwen3.5-9B-Q4_K_M.gguf", "mmproj-F16.gguf"),  # unsloth
        ("Qwen3.5-27B-UD-Q4_K_XL.gguf", "mmproj-BF16.gguf"),
        ("google_gemma-3-4b-it-Q4_K_M.gguf", "mmproj-google_gemma-3-4b-it-f16.gguf"),  # bartowski
        ("Qwen2.5-VL-7B-Instruct-Q4_K_M.gguf", "Qwen2.5-VL-7B-Instruct-mmproj-f16.gguf"),
        ("SmolVLM-500M-Instruct-Q8_0.gguf", "mmproj-SmolVLM-500M-Instruct-Q8_0.gguf"),
        ("moondream2-text-model-f16.gguf", "moondream2-mmproj-f16.gguf"),
        ("ggml-model-Q4_K_M.gguf", "mmproj-model-f16.gguf"),
        ("ggml-model-q4_k.gguf", "llava-v1.5-7b-mmproj-f16.gguf"),
        ("BF16/Qwen3.5-27B-BF16-00001-of-00001.gguf", "mmproj-F16.gguf"),
        ("Qwen3.5-9B-Q4_K_M.gguf", "mmproj/mmproj-F16.gguf"),
        ("Some-Tune-Of-Gemma-Q4_K_M.gguf", "mmproj-google_gemma-3-4b-it-f16.gguf"),
        (
            "own_repo-GGUF_gemma-3-4b-it-Q4_0.gguf",
            "own_repo-GGUF_mmproj-model-f16.gguf",
        ),  # llama.cpp's old cache
    ],
)
def test_the_names_of_publishers(model, projector):
    assert found(model, projector) == {model: (projector,)}


def test_several_models_have_their_own():
    assert found(
        "gemma-4-E2B-it-Q4_0.gguf",
        "gemma-4-E4B-it-Q4_0.gguf",
        "mmproj-gemma-4-E2B-it-F16.gguf",
        "mmproj-gemma-4-E4B-it-F16.gguf",
        "Qwen3-0.6B-Q8_0.gguf",
    ) == {
        "gemma-4-E2B-it-Q4_0.gguf": ("mmproj-gemma-4-E2B-it-F16.gguf",),
        "gemma-4-E4B-it-Q4_0.gguf": ("mmproj-gemma-4-E4B-it-F16.gguf",),
        "Qwen3-0.6B-Q8_0.gguf": (),
    }


def test_models_in_folders_have_the_nearest():
    names = (
        "4b/m-Q4_0.gguf",
        "4b/mmproj-F16.gguf",
        "9b/m-Q4_0.gguf",
        "9b/mmproj-F16.gguf",
        "mmproj-F16.gguf",
    )
    assert found(*names) == {
        "4b/m-Q4_0.gguf": ("4b/mmproj-F16.gguf",),
        "9b/m-Q4_0.gguf": ("9b/mmproj-F16.gguf",),
    }


def test_a_nameless_one_among_several_models_is_nobodys():
    assert not any(found("a-Q4_0.gguf", "b-Q4_0.gguf", "mmproj-F16.gguf").values())


def test_in_a_folder_of_many_origins_another_models_stays_its_own():
    names = ("llama-8b-Q4_0.gguf", "mmproj-gemma-3-4b-it-F16.gguf")
    assert found(*names, mixed=True) == {names[0]: ()}
    assert found(*names) == {names[0]: (names[1],)}
    inside = tuple(f"owner/repo/{name}" for name in names)
    assert found(*inside, mixed=True) == {inside[0]: (inside[1],)}
    assert found(names[0], "mmproj-F16.gguf", mixed=True) == {names[0]: ("mmproj-F16.gguf",)}


def test_all_quantizations_share_one():
    files = found("a-Q4_0.gguf", "a-UD-Q8_K_XL.gguf", "a-imat-Q4_0.gguf", "mmproj-F16.gguf")
    assert set(files.values()) == {("mmproj-F16.gguf",)}


@pytest.mark.parametrize(
    ("quant", "order"),
    [
        ("Q4_K_M", ["Q8_0", "F16", "BF16", "F32", "Q4_0"]),
        ("UD-Q4_K_XL", ["Q8_0", "F16", "BF16", "F32", "Q4_0"]),
        ("Q8_0", ["Q8_0", "F16", "BF16", "F32", "Q4_0"]),
        ("BF16", ["F16", "BF16", "Q8_0", "F32", "Q4_0"]),
        ("F32", ["F16", "BF16", "Q8_0", "F32", "Q4_0"]),
    ],
)
def test_the_best_of_several(quant, order):
    names = [f"mmproj-{label}.gguf" for label in ("F32", "BF16", "Q4_0", "F16", "Q8_0")]
    (projectors,) = found(f"a-{quant}.gguf", *names).values()
    assert projectors == tuple(f"mmproj-{label}.gguf" for label in order)


def test_a_projector_is_never_a_model():
    assert found("mmproj-F16.gguf", "a-mmproj-Q4_0.gguf") == {}
    split = [f"mmproj-F16-0000{i}-of-00002.gguf" for i in (1, 2)]
    assert found("a-Q4_0.gguf", *split) == {"a-Q4_0.gguf": ()}
