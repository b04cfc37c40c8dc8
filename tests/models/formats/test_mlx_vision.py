"""Vision towers in the folders of MLX models: what a header says of them, and what texts do not mind."""

import pytest

from edgechat.models.choices import RemoteFile, model_choices
from edgechat.models.formats.mlx import contents
from edgechat.models.formats.mlx.contents import read_model
from edgechat.models.formats.mlx.vision import PROCESSORS
from edgechat.models.formats.projector import tower_of
from edgechat.planner.companions import largest_picture, weights_bytes
from tests.models.mlx_folders import CONFIG, mlx_files, shapes, written
from tests.models.mlx_folders import safetensors as made

Shapes = dict[str, tuple[str, tuple[int, ...]]]
SIGLIP = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "image_size": 64,
    "patch_size": 8,
}
QWEN = {"hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 8, "spatial_merge_size": 2}
TOWER = {
    "vision_tower.encoder.layers.0.q_proj.weight": ("BF16", (32, 32)),
    "vision_tower.encoder.layers.1.q_proj.weight": ("U32", (32, 16)),
    "vision_tower.encoder.layers.1.q_proj.scales": ("BF16", (32, 2)),
    "vision_tower.encoder.layers.1.q_proj.biases": ("BF16", (32, 2)),
    "multi_modal_projector.weight": ("BF16", (32, 64)),
}
"""The second matrix in 4 bits: 128 numbers a row, in groups of 64."""


def files_of(kind, vision, *, tower=TOWER, **more):
    config = {
        "architectures": ["XForConditionalGeneration"],
        "model_type": kind,
        "vision_config": vision,
    } | more
    text = {key: value for key, value in CONFIG.items() if key not in ("architectures",)}
    found = mlx_files(bits=None, quantization={"bits": 4, "group_size": 64}, text_config=text, **config)
    found["model.safetensors"] = made(shapes(CONFIG) | dict(tower))
    return found | {"preprocessor_config.json": b"{}"}


def read(folder, files):
    return read_model(written(folder / "model", files))


def test_a_tower_is_apart_from_the_language_model(tmp_path):
    header = read(tmp_path, files_of("gemma3", SIGLIP, mm_tokens_per_image=16))
    plain = read(tmp_path / "plain", mlx_files(bits=None))
    assert (header.tensors, header.n_params) == (plain.tensors, plain.n_params)
    tower, problem = tower_of(header)
    assert tower is not None
    assert (problem, tower.modalities) == ("", ("vision",))
    assert tower.vision is not None
    assert (tower.vision.type, tower.vision.n_layers, tower.vision.embedding_length) == ("gemma3", 2, 32)
    by_name = {tensor.name: tensor for tensor in header.vision_tensors}
    assert by_name["v.blk.1.q_proj.weight"].shape == (128, 32)
    assert weights_bytes(tower) == 32 * 32 * 2 + 32 * (64 + 4 + 4) + 32 * 64 * 2
    picture = largest_picture(tower, header.embedding_length, 2048)
    assert (picture.tokens, picture.patches, picture.whole) == (16, 64, 16)


@pytest.mark.parametrize(
    ("kind", "vision", "more", "tokens"),
    [
        ("gemma4", SIGLIP | {"pooling_kernel_size": 2}, {"vision_soft_tokens_per_image": 24}, 24),
        ("gemma4", SIGLIP | {"pooling_kernel_size": 2}, {}, 1024),
        ("idefics3", SIGLIP, {"scale_factor": 4}, 4 * 17),
        ("smolvlm", SIGLIP, {"scale_factor": 2}, 16 * 17),
        ("llava", SIGLIP, {}, 64),
        ("qwen3_vl", QWEN, {}, 1024),
        ("qwen2_vl", QWEN | {"embed_dim": 32, "hidden_size": 64}, {}, 1024),
    ],
)
def test_the_largest_picture(kind, vision, more, tokens, tmp_path):
    """At most half of the context, and what the encoder was made for."""
    tower, _ = tower_of(read(tmp_path, files_of(kind, vision, **more)))
    assert tower is not None
    assert largest_picture(tower, 64, 2048).tokens == tokens


def test_a_model_whose_tower_was_left_out_only_reads(tmp_path):
    """Converters for texts leave the config as it is."""
    assert tower_of(read(tmp_path, files_of("gemma3", SIGLIP, tower={}))) == (None, "")
    without = files_of("gemma3", SIGLIP)
    del without["preprocessor_config.json"]
    assert tower_of(read(tmp_path / "cutter", without)) == (None, "")
    assert tower_of(read(tmp_path / "plain", mlx_files())) == (None, "")


def test_a_tower_of_another_kind_is_named(tmp_path):
    tower, problem = tower_of(read(tmp_path, files_of("hypervision\x1b[31m", SIGLIP)))
    assert tower is None
    assert problem.startswith(
        "edgechat's MLX backend does not support images for this kind of model: 'hypervision"
    )
    assert problem.isprintable()


@pytest.mark.parametrize("value", [0, -1, 1 << 40, "wide", None, True, [32]])
@pytest.mark.parametrize("key", ["hidden_size", "patch_size", "num_attention_heads"])
def test_nonsense_about_a_tower_does_not_harm_the_text(key, value, tmp_path):
    header = read(tmp_path, files_of("gemma3", SIGLIP | {key: value}))
    assert header.n_layers == 2
    tower, problem = tower_of(header)
    assert (tower is None) == bool(problem)
    assert tower is not None if value is None else key in problem


def test_what_is_read_is_kept_for_later(tmp_path):
    folder = written(tmp_path / "model", files_of("gemma3", SIGLIP))
    table = contents._read_tables([folder / "model.safetensors"])
    for sees in (True, False):
        kept = contents.Contents((folder / "config.json").read_bytes(), table, sees=sees)
        assert (tower_of(contents.unpack(kept.pack()).header("a/b"))[0] is not None) == sees


def test_what_cuts_pictures_is_downloaded_too():
    names = ("config.json", "tokenizer.json", "model.safetensors", *PROCESSORS, "processing.py")
    (choice,) = model_choices([RemoteFile(name, 9) for name in names])
    assert set(choice.file_names) == set(names) - {"processing.py"}
