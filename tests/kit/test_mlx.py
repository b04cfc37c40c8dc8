"""The kit's MLX models are what mlx-lm itself reads, and compute what llama.cpp computes from the GGUFs."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load

from tests.kit import KINDS, NOT_PRINTABLE, Spec, build, mlx_corrupt, tiny
from tests.kit.mlx import FLOATS, QUANTS, mlx_build, mlx_pair, mlx_tiny
from tests.kit.reference import Reference
from tests.kit.test_kit import EXACT, TOKENS, in_chunks

pytestmark = pytest.mark.slow


def rows_of(folder, tokens=TOKENS[:300]):
    """Compute tokens in one call, with nothing cached: [len(tokens), n_vocab]."""
    model, _ = load(str(folder))
    return np.array(model(mx.array([tokens]))[0].astype(mx.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_both_formats_are_the_same_model(kind):
    """llama.cpp looks GELU up in a table of f16, which is what the windowed one differs by."""
    found = rows_of(mlx_tiny(kind, mute=NOT_PRINTABLE))
    with Reference(tiny(kind, mute=NOT_PRINTABLE), **EXACT) as run:
        assert np.abs(found - in_chunks(run, 300)).max() < (0.02 if kind == "windowed" else 1e-4)


@pytest.mark.parametrize("weights", [*FLOATS, *QUANTS])
def test_every_type_computes(weights):
    found = rows_of(mlx_tiny("dense", weights=weights)).ravel()
    exact = rows_of(mlx_tiny("dense")).ravel()
    least = {"F32": 1.0, "F16": 0.999, "BF16": 0.99, "8bit": 0.99, "6bit": 0.98}.get(weights, 0.8)
    assert np.corrcoef(found, exact)[0, 1] > least - 1e-6


TEXTS = (
    "",
    "plain",
    "the thing and  the rest\n\n in there ",
    "Grüße 世界 🙂\n\n  x\t\x00 end  ",
    "<|im_start|>user\nthe<|im_end|>\n",
    "a" * 300,
)


@pytest.mark.parametrize("pieces", [False, True], ids=["bytes", "pieces"])
def test_both_formats_have_the_same_tokens(pieces):
    spec = Spec(pieces=pieces)
    _, tokenizer = load(str(mlx_build(spec)))
    with Reference(build(spec)) as run:
        assert len(tokenizer.get_vocab()) == run.n_vocab
        for text in TEXTS:
            ids = run.tokenize(text, special=True)
            assert tokenizer.encode(text, add_special_tokens=False) == ids
            said = b"".join(run.piece(one, special=True) for one in ids)
            assert tokenizer.decode(ids) == said.decode().removeprefix(" " if pieces else "")
        assert tokenizer.encode("the") == run.tokenize("the", bos=pieces)
        assert tokenizer.eos_token_ids == {token for token in range(run.n_vocab) if run.ends(token)}


def test_a_text_of_saidis_shorter_than_its_bytes():
    with Reference(build(Spec(pieces=True))) as run:
        assert len(run.tokenize("the thing and the end")) < 16
        assert b"".join(map(run.piece, run.tokenize("the 🙂"))) == " the 🙂".encode()


def test_a_pair_agrees_as_asked():
    for eps, least, most in ((0.0, 1.0, 1.0), (0.15, 0.5, 0.99), (1.0, 0.0, 0.5)):
        target, draft = (rows_of(one).argmax(1) for one in mlx_pair(eps))
        assert least <= np.mean(target == draft) <= most


def test_a_padded_vocabulary(tmp_path):
    folder = mlx_build(Spec(n_vocab=1000), folder=tmp_path)
    assert rows_of(folder, TOKENS[:5]).shape == (5, 1000)


def test_same_spec_same_bytes(tmp_path):
    one, two = (mlx_tiny("moe", folder=tmp_path / name, weights="4bit") for name in "ab")
    files = {path.name: path.read_bytes() for path in one.iterdir()}
    assert files == {path.name: path.read_bytes() for path in two.iterdir()}
    assert one.name != mlx_tiny("moe", weights="4bit", seed=2).name
    assert not list(tmp_path.rglob(".part-*"))


def test_a_failed_write_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="one type"):
        mlx_build(Spec(types={"output.weight": "F16"}), folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_shards_are_one_model(tmp_path):
    split = mlx_corrupt.of_shards(mlx_tiny(), tmp_path / "m", n_shards=3)
    assert len(list(split.glob("model-0000*-of-00003.safetensors"))) == 3
    assert np.array_equal(rows_of(split), rows_of(mlx_tiny()))


@pytest.mark.parametrize("kind", mlx_corrupt.ALL)
def test_corrupt_folders_differ_from_sound_ones(kind, tmp_path):
    sound = mlx_tiny()
    broken = mlx_corrupt.ALL[kind](sound, tmp_path / "m")

    def contents(folder):
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    assert contents(broken) != contents(sound)
