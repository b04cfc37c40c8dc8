"""The kit's models do what they are made for: llama.cpp loads them, and each kind behaves like its kind."""

import llama_cpp.llama_cpp as api
import numpy as np
import pytest

from tests.kit import (
    END,
    KINDS,
    NOT_PRINTABLE,
    Q4_K_M,
    START,
    TEXT_END,
    Shape,
    Spec,
    build,
    corrupt,
    pair,
    tiny,
)
from tests.kit.build import fingerprint, write
from tests.kit.reference import Reference

pytestmark = pytest.mark.slow

TOKENS = [int(t) for t in np.random.default_rng(0).integers(32, 127, 1000)]
EXACT = {"type_k": 0, "type_v": 0}
WIDE = Shape(n_embd=256, n_ff=256)


def difference(a, b):
    return float(np.abs(a - b).max())


def in_chunks(run, stop, size=64):
    """Decode the first `stop` TOKENS in small batches, as a window shorter than the text needs it."""
    parts = [run.decode(TOKENS[i : min(i + size, stop)], start=i) for i in range(0, stop, size)]
    return np.vstack(parts)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_decodes(kind):
    with Reference(tiny(kind)) as run:
        logits = run.decode(TOKENS[:64])
        assert np.isfinite(logits).all()
        assert 2 < logits.std() < 8
        assert len(set(run.greedy(TOKENS[:16], 32))) > 5, "the text is stuck"


@pytest.mark.parametrize("weights", ["F32", "F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"])
def test_every_type_decodes(weights):
    types = Q4_K_M if weights == "Q4_K" else {}
    with Reference(build(Spec(shape=WIDE, weights=weights, types=types))) as run:
        logits = run.decode(TOKENS[:64])
        assert np.isfinite(logits).all()
        assert 2 < logits.std() < 8


@pytest.mark.parametrize("text", ["", "plain", "Grüße 世界 🙂\n\n  x\t\x00 end  ", "<|im_end|>", "a" * 500])
def test_bytes_are_their_own_ids(text):
    with Reference(tiny()) as run:
        ids = run.tokenize(text)
        assert ids == list(text.encode())
        assert b"".join(map(run.piece, ids)) == text.encode()


def test_special_tokens():
    with Reference(tiny()) as run:
        assert run.tokenize("<|im_start|>a<|im_end|><|endoftext|>", special=True) == [
            START,
            97,
            END,
            TEXT_END,
        ]
        assert [t for t in range(run.n_vocab) if run.ends(t)] == [END, TEXT_END]
        assert run.piece(END) == b""
        assert run.piece(END, special=True) == b"<|im_end|>"


def test_padded_vocabulary_still_reads_bytes():
    with Reference(build(Spec(n_vocab=2000))) as run:
        assert run.n_vocab == 2000
        assert run.tokenize(" baba hello") == list(b" baba hello")
        pieces = {run.piece(t) for t in range(259, 2000)}
        assert len(pieces) == 2000 - 259
        assert all(piece.decode().strip().isalpha() for piece in pieces)


def test_copied_tokenizer():
    """A model made with another's tokenizer has its ids and template."""
    with Reference(build(Spec(tokenizer=tiny("qwen3"), chat_template=None))) as run:
        assert run.tokenize("hi<|im_end|>", special=True) == [104, 105, END]
        assert b"<|im_start|>" in api.llama_model_chat_template(run.model, None)


def test_muted_ids_are_not_said():
    with Reference(build(Spec(mute=NOT_PRINTABLE))) as run:
        said = run.greedy(TOKENS[:8], 100)
        assert all(t == 10 or 32 <= t < 127 for t in said)


def test_same_spec_same_bytes(tmp_path):
    spec = Spec(weights="Q4_0", seed=7)
    one, two = build(spec, folder=tmp_path / "a"), build(spec, folder=tmp_path / "b")
    assert one.read_bytes() == two.read_bytes()
    assert fingerprint(spec) != fingerprint(Spec(weights="Q4_0", seed=8))
    assert not list(tmp_path.rglob(".part-*"))


def test_a_failed_write_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="blocks of 256"):
        build(Spec(weights="Q4_K"), folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_split_files_are_one_model(tmp_path):
    write(Spec(), tmp_path / "m.gguf", split_max_tensors=8)
    parts = sorted(tmp_path.glob("m-*.gguf"))
    assert [p.name for p in parts] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    with Reference(parts[0]) as split, Reference(tiny()) as whole:
        assert split.greedy(TOKENS[:8], 16) == whole.greedy(TOKENS[:8], 16)


def test_unknown_architecture_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="does not load"):
        Reference(corrupt.unknown_architecture(tmp_path / "m.gguf"))


def agreement(eps):
    """Return how often the draft's best token is the target's, along greedy texts of the target."""
    target, draft = pair(eps)
    same = []
    with Reference(target) as a, Reference(draft) as b:
        for start in range(0, 160, 16):
            prompt = TOKENS[start : start + 16]
            text = prompt + a.greedy(prompt, 32)
            a.clear()
            b.clear()
            same.extend(a.decode(text).argmax(1)[15:-1] == b.decode(text).argmax(1)[15:-1])
    return float(np.mean(same))


def test_a_pair_agrees_as_asked():
    exact, near, far = agreement(0.0), agreement(0.15), agreement(1.0)
    assert exact == 1.0
    assert 0.5 < near < 0.95
    assert far < 0.4


def test_dense_cuts_anywhere():
    with Reference(tiny("dense"), **EXACT) as run:
        full = run.decode(TOKENS[:500])
        assert api.llama_memory_seq_rm(run.memory, 0, 200, -1)
        assert difference(run.decode(TOKENS[200:210], start=200), full[200:210]) < 1e-3
        assert api.llama_memory_can_shift(run.memory)


def test_windowed_says_yes_and_is_wrong_behind_its_window():
    with Reference(tiny("windowed"), n_ctx=2048, n_seq_max=2, n_ubatch=64, **EXACT) as run:
        full = in_chunks(run, 1000)
        assert api.llama_model_n_swa(run.model) == 128
        assert not api.llama_memory_can_shift(run.memory)
        assert api.llama_memory_seq_rm(run.memory, 0, 995, -1)
        assert difference(run.decode(TOKENS[995:1000], start=995), full[995:1000]) < 1e-3
        assert api.llama_memory_seq_rm(run.memory, 0, 400, -1)
        assert difference(run.decode(TOKENS[400:410], start=400), full[400:410]) > 1


def test_hybrid_refuses_to_be_cut():
    with Reference(tiny("hybrid"), **EXACT) as run:
        run.decode(TOKENS[:100])
        assert api.llama_model_is_hybrid(run.model)
        assert not api.llama_memory_seq_rm(run.memory, 0, 99, -1)
        assert api.llama_memory_seq_pos_max(run.memory, 0) == 99


def test_hybrid_rolls_back_with_snapshots():
    with Reference(tiny("hybrid"), n_rs_seq=4, **EXACT) as run:
        full = run.decode(TOKENS[:100])
        run.clear()
        run.decode(TOKENS[:90])
        run.decode(TOKENS[90:94], start=90)
        assert api.llama_memory_seq_rm(run.memory, 0, 92, -1)
        assert difference(run.decode(TOKENS[92:93], start=92), full[92:93]) < 1e-3
