"""LoRA adapters in llama.cpp equal merged weights, and can change from call to call."""

import os

import numpy as np
import pytest

from edgechat.base.errors import DecodeFailed, EdgechatError, NotAnAdapter
from edgechat.engine.backends import llama_cpp
from edgechat.engine.backends.base import ActiveAdapter, BatchPart, adapter_set
from edgechat.models.formats.gguf import read_header
from edgechat.native.params import AdapterUse
from tests.engine.runtimes import BOUND, load, plan, some
from tests.kit import KINDS, Spec, build
from tests.kit.adapters import adapter, merged, pairs, peft_folder, write_adapter

TOKENS = some(5, 40)


def spec_of(kind):
    return Spec(shape=KINDS[kind], name=f"tiny-{kind}")


def logits(backend, *adapters):
    backend.adapters.use(backend.adapters.resolve(adapters))
    backend.truncate(0, 0)
    return backend.decode([BatchPart(0, 0, TOKENS, 1)])[0].copy()


def test_scales_of_one_adapter_add_up_to_a_valid_one():
    half, most = (ActiveAdapter("a", scale, "a.gguf", ()) for scale in (50.0, 100.0))
    assert adapter_set([half, half]) == (most,)
    with pytest.raises(NotAnAdapter, match="150 is not a valid scale"):
        adapter_set([half, most])


@pytest.mark.parametrize("kind", ["dense", "qwen3", "windowed", "hybrid", "moe"])
def test_the_logits_are_those_of_merged_weights(tmp_path, kind):
    spec = spec_of(kind)
    made = pairs(spec)
    file = AdapterUse(str(write_adapter(tmp_path / "a.gguf", made, spec.shape)), 0.5)
    backend, whole = load(plan(build(spec))), load(plan(merged(tmp_path / "m.gguf", spec, made, 0.5)))
    plain = logits(backend)
    assert np.abs(logits(backend, file) - logits(whole)).max() < BOUND
    assert np.abs(plain - logits(whole)).max() > 1
    assert (logits(backend) == plain).all()
    backend.close()
    whole.close()


def test_experts_are_changed_one_by_one(tmp_path):
    spec = spec_of("moe")
    random = np.random.default_rng(2)
    made = {
        "blk.0.ffn_up_exps.weight": (
            random.standard_normal((8, 4, 64)).astype(np.float32) / 8,
            random.standard_normal((8, 64, 4)).astype(np.float32),
        )
    }
    file = AdapterUse(str(write_adapter(tmp_path / "a.gguf", made, spec.shape)))
    backend, whole = load(plan(build(spec))), load(plan(merged(tmp_path / "m.gguf", spec, made)))
    assert np.abs(logits(backend, file) - logits(whole)).max() < BOUND
    assert np.abs(logits(backend) - logits(whole)).max() > 0.1
    backend.close()
    whole.close()


def test_a_peft_folder_and_several_at_once(tmp_path):
    spec = spec_of("dense")
    first, second = pairs(spec), pairs(spec, seed=8)
    folder = AdapterUse(str(peft_folder(tmp_path / "peft", first, spec.shape)))
    file = AdapterUse(str(write_adapter(tmp_path / "a.gguf", second, spec.shape, alpha=8.0)), 0.25)
    both = {
        name: (np.vstack([a, second[name][0]]), np.hstack([b, second[name][1] * np.float32(0.5)]))
        for name, (a, b) in first.items()
    }
    backend, whole = load(plan(build(spec))), load(plan(merged(tmp_path / "m.gguf", spec, both)))
    assert np.abs(logits(backend, folder, file) - logits(whole)).max() < BOUND
    backend.close()
    whole.close()


def test_a_set_is_what_is_in_the_files(tmp_path, opened):
    spec = spec_of("dense")
    backend = opened(load(plan(build(spec))))
    resolve = backend.adapters.resolve
    a, b = (str(adapter(tmp_path, spec, name, seed=seed)) for name, seed in (("a", 1), ("b", 2)))
    copy = str(adapter(tmp_path, spec, "copy", seed=1))
    assert resolve([AdapterUse(a)]) == resolve([AdapterUse(copy)])
    assert resolve([AdapterUse(a), AdapterUse(b)]) == resolve([AdapterUse(b), AdapterUse(copy)])
    assert resolve([AdapterUse(a), AdapterUse(copy)]) == resolve([AdapterUse(a, 2.0)])
    assert resolve([AdapterUse(a, 0.0)]) == resolve([AdapterUse(a), AdapterUse(a, -1.0)]) == ()
    assert resolve([AdapterUse(a)]) != resolve([AdapterUse(a, 0.5)])
    adapter(tmp_path, spec, "copy", seed=3)
    os.utime(copy, ns=(1, 1))
    assert resolve([AdapterUse(a)]) != resolve([AdapterUse(copy)])
    with pytest.raises(NotAnAdapter, match="limit is 4"):
        resolve([AdapterUse(a)] * 5)
    with pytest.raises(NotAnAdapter, match="scale"):
        resolve([AdapterUse(a, float("nan"))])
    with pytest.raises(NotAnAdapter, match="cannot be read"):
        resolve([AdapterUse(str(tmp_path / "gone.gguf"))])


def test_a_file_that_changes_after_the_check_is_not_loaded(tmp_path, opened):
    spec = spec_of("dense")
    backend = opened(load(plan(build(spec))))
    assert backend.adapters is not None
    path = adapter(tmp_path, spec)
    found = backend.adapters.resolve([AdapterUse(str(path))])
    path.write_bytes(b"GGUF" + b"\xff" * 5000)
    with pytest.raises(DecodeFailed, match="has changed"):
        backend.adapters.use(found)
    logits(backend)


def test_few_are_kept_in_memory(tmp_path, monkeypatch, opened):
    monkeypatch.setattr(llama_cpp, "MOST_LOADED", 2)
    spec = spec_of("dense")
    backend = opened(load(plan(build(spec))))
    files = [AdapterUse(str(adapter(tmp_path, spec, f"{seed}", seed=seed))) for seed in range(5)]
    first = [logits(backend, one) for one in files]
    assert len(backend.adapters._loaded) == 2
    for one, rows in zip(files, first, strict=True):
        assert (logits(backend, one) == rows).all()


@pytest.mark.slow
def test_what_passes_the_check_does_not_abort_llama_cpp(tmp_path, opened):
    spec = spec_of("dense")
    backend = opened(load(plan(build(spec))))
    path = write_adapter(tmp_path / "a.gguf", pairs(spec), spec.shape)
    data, random = path.read_bytes(), np.random.default_rng(4)
    refused = 0
    for at in random.integers(0, read_header(path).data_offset, 400):
        changed = bytearray(data)
        changed[at] ^= 1 << int(random.integers(8))
        path.write_bytes(changed)
        try:
            logits(backend, AdapterUse(str(path)))
        except EdgechatError:
            refused += 1
    assert 100 < refused < 400
