import pytest

from edgechat.planner.estimate.memory import compute_bytes, output_bytes
from tests.planner.headers import GEMMA_12B, LLAMA_8B, QWEN3_30B, header

MIB = 2**20


@pytest.mark.parametrize(
    ("numbers", "arch", "n_ctx", "flash", "allocated"),
    # What llama.cpp 0c1e57098 allocates on a CPU with either attention: f16, n_ubatch 512, 4 sequences.
    [
        (LLAMA_8B, "llama", 2048, True, 118.0),
        (LLAMA_8B, "llama", 8192, True, 124.0),
        (LLAMA_8B, "llama", 16384, True, 132.0),
        (GEMMA_12B, "gemma3", 2048, True, 124.5),
        (GEMMA_12B, "gemma3", 8192, True, 133.0),
        (GEMMA_12B, "gemma3", 16384, True, 141.0),
        (QWEN3_30B, "qwen3moe", 2048, True, 90.0),
        (QWEN3_30B, "qwen3moe", 16384, True, 104.0),
        (LLAMA_8B, "llama", 2048, False, 176.0),
        (LLAMA_8B, "llama", 8192, False, 572.0),
        (LLAMA_8B, "llama", 16384, False, 1100.0),
        (GEMMA_12B, "gemma3", 2048, False, 136.5),
        (GEMMA_12B, "gemma3", 8192, False, 335.5),
        (GEMMA_12B, "gemma3", 16384, False, 607.5),
        (QWEN3_30B, "qwen3moe", 2048, False, 162.0),
        (QWEN3_30B, "qwen3moe", 8192, False, 558.0),
        (QWEN3_30B, "qwen3moe", 16384, False, 1086.0),
    ],
)
def test_against_the_allocator(numbers, arch, n_ctx, flash, allocated):
    found = compute_bytes(header(numbers, arch=arch), n_ctx, flash=flash)
    assert found / MIB == pytest.approx(allocated, rel=0.01)


def test_the_logits_decide_where_the_vocabulary_is_huge():
    small = header(LLAMA_8B, embedding_length=64, feed_forward_length=64, vocab_size=2_000_000)
    assert compute_bytes(small, 256) >= 4 * 4 * 2_000_000


def test_output():
    assert output_bytes(header(LLAMA_8B), 4) == 4 * 4 * 128256
