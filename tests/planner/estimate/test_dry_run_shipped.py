"""llama.cpp accepts every header that comes with edgechat, and its caches are those that the shapes say."""

import pytest

from edgechat.base import paths
from edgechat.models.catalogue import read_catalogue
from edgechat.models.shipped import shipped_header, shipped_quants
from edgechat.native.params import LoadParams
from edgechat.planner.estimate.dry_run import DryRun

pytestmark = pytest.mark.slow

MIB = 2**20
ENTRIES = {entry.name: entry for entry in read_catalogue(paths.shipped("models.toml"))}

# MiB of an f16 cache at 8192 and 32768 tokens: 2 x heads x channels x 2 bytes for each full layer and token,
# windowed layers up to their window and a batch, recurrent states as they are.
CACHES = {
    "smollm2-135m": (180, 180),
    "smollm2-360m": (320, 320),
    "smollm2-1.7b": (1536, 1536),
    "smollm3-3b": (576, 2304),
    "tinyllama-1.1b": (44, 44),
    "gemma-3-270m": (39, 111),
    "gemma-3-1b": (54, 150),
    "gemma-3-4b": (334, 814),
    "gemma-4-e2b": (60, 204),
    "gemma-4-e4b": (168, 552),
    "gemma-4-12b": (608, 992),
    "gemma-4-26b-a4b": (460, 940),
    "gemma-4-31b": (1840, 3760),
    "phi-4-mini": (1024, 4096),
    "llama-3.2-1b": (256, 1024),
    "llama-3.2-3b": (896, 3584),
    "llama-3.1-8b": (1024, 4096),
    "llama-3.3-70b": (2560, 10240),
    "mistral-7b-v0.3": (1024, 4096),
    "qwen3-0.6b": (896, 3584),
    "qwen3-1.7b": (896, 3584),
    "qwen3-4b": (1152, 4608),
    "qwen3-8b": (1152, 4608),
    "qwen3-14b": (1280, 5120),
    "qwen3-30b-a3b": (768, 3072),
    "qwen3-coder-30b-a3b": (768, 3072),
    "qwen3.5-0.8b": (115.27, 403.27),
    "qwen3.5-2b": (115.27, 403.27),
    "qwen3.5-4b": (306.25, 1074.25),
    "qwen3.5-9b": (306.25, 1074.25),
    "qwen3.5-27b": (661.63, 2197.63),
    "qwen3.6-27b": (661.63, 2197.63),
    "qwen3.8-27b": (661.63, 2197.63),
    "qwen3.5-35b-a3b": (222.81, 702.81),
    "qwen3.6-35b-a3b": (222.81, 702.81),
    "qwen2.5-coder-0.5b": (96, 384),
    "qwen2.5-coder-1.5b": (224, 896),
    "qwen2.5-coder-7b": (448, 1792),
    "deepseek-r1-distill-qwen-7b": (448, 1792),
    "gpt-oss-20b": (210, 786),
    "granite-4.2-3b": (640, 2560),
    "ministral-3-8b": (1088, 4352),
    "lfm2.5-1.2b": (96.16, 384.16),
    "lfm2.5-8b-a1b": (96.28, 384.28),
    "embeddinggemma": (0, 0),
    "qwen3-embedding-0.6b": (896, 3584),
    "bge-m3": (0, 0),
    "bge-reranker-v2-m3": (0, 0),
    "qwen3-reranker-0.6b": (896, 3584),
    "nomic-embed-text-v1.5": (0, 0),
}


@pytest.fixture(scope="module")
def run():
    with DryRun() as run:
        yield run


def test_all_are_here():
    assert set(CACHES) == {entry.name for entry in ENTRIES.values() if entry.repo is not None}


@pytest.mark.parametrize("name", CACHES)
def test_caches(run, name):
    entry = ENTRIES[name]
    assert entry.quant is not None
    header = shipped_header(entry, entry.quant)
    assert header is not None
    run.show(header)
    for asked, expected in zip((8192, 32768), CACHES[name], strict=True):
        found = run.ask(LoadParams(context=min(asked, entry.context or 0), n_seq_max=1, n_outputs_max=1))
        assert found.cache / MIB == pytest.approx(expected, abs=0.01)
        tensors = {tensor.name: tensor.n_bytes for tensor in header.tensors}
        # llama.cpp counts the embeddings of Gemma 4 a second time where they serve as output too.
        shared = tensors["token_embd.weight"] if header.architecture == "gemma4" else 0
        assert 0 <= found.weights - header.weights_bytes - shared < 4096  # its own padding


@pytest.mark.parametrize(
    "name", ["qwen3-coder-30b-a3b", "gemma-4-e2b", "smollm2-135m", "llama-3.1-8b", "nomic-embed-text-v1.5"]
)
def test_every_quantization_is_accepted(run, name):
    entry = ENTRIES[name]
    weights = []
    for quant in shipped_quants(entry):
        header = shipped_header(entry, quant)
        assert header is not None
        run.show(header)
        weights.append(run.ask(LoadParams(context=512)).weights)
    assert weights == sorted(weights)
