"""Loads that fail for want of memory are told from those whose file only speaks of it."""

import subprocess
import sys

import pytest

from edgechat.base.errors import LoadFailed
from edgechat.native import logs
from edgechat.native.handles import Model
from edgechat.native.params import LoadParams
from tests.kit import tiny
from tests.kit.build import Spec, write
from tests.kit.corrupt import truncated, unknown_architecture

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "line",
    [
        "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 274877906976",
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 151851674624",
        "ggml_gallocr_reserve_n_impl: failed to allocate RPC1[127.0.0.1:41] buffer of size 54262464512",
        "ggml_aligned_malloc: insufficient memory (attempted to allocate 262144.00 MB)",
        "llama_model_load: error loading model: unable to allocate CUDA0 buffer",
        "llama_model_load: error loading model: mmap failed: Cannot allocate memory",
        "llama_model_load: error loading model: std::bad_alloc",
        "graph_reserve: failed to allocate compute buffers",
        "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
        "llama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers",
        "output_reserve: failed to allocate output buffer of size 512.00 MiB",
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 144.00 MiB on device 4: "
        "cudaMalloc failed: out of memory",
        "ggml_metal_log_allocated_size: error: failed to allocate buffer, size =  4096.00 MiB",
        "ggml_vulkan: Device memory allocation of size 369827840 failed.",
        "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
        "ggml_vulkan: Requested buffer size exceeds device buffer size limit: ErrorOutOfDeviceMemory",
    ],
)
def test_what_llama_cpp_says_where_memory_is_short(line):
    assert logs.ran_out(["something before", f"{line}\n"])


@pytest.mark.parametrize(
    "line",
    [
        "gguf_init_from_file: failed to open GGUF file '/alloc/out of memory' (No such file or directory)",
        "llama_model_load: error loading model: unknown model architecture: 'unable to allocate CPU buffer'",
        "llama_model_load: error loading model: missing tensor 'failed to allocate buffer of size 1'",
        "llama_model_load: error loading model: mmap failed: No such device",
        "gguf_init_from_reader: encountered bad_alloc error while reading value for key 'tokenizer.x'",
        "a name\nllama_model_load: error loading model: std::bad_alloc",
        "llama_kv_cache: the cache was allocated",
        "",
    ],
)
def test_what_it_says_otherwise(line):
    assert not logs.ran_out([line])


def _refused(path):
    logs.install()
    with pytest.raises(LoadFailed) as caught:
        Model(path, LoadParams(context=512))
    return caught.value


@pytest.mark.parametrize("name", ["alloc", "out of memory", "std::bad_alloc"])
def test_files_that_only_speak_of_memory(tmp_path, name):
    """Their paths, names and tensors are in what llama.cpp says."""
    folder = tmp_path / name
    folder.mkdir()
    missing = folder / "missing.gguf"
    cut = truncated(tiny(), folder / "cut.gguf", keep=5000)
    odd = unknown_architecture(folder / "odd.gguf", name)
    typed = folder / "typed.gguf"
    write(Spec(overrides={"tokenizer.ggml.model": name}), typed)
    for path in (missing, cut, odd, typed):
        assert type(_refused(path)) is LoadFailed


LIMITED = """
import resource, sys
from pathlib import Path
from edgechat.base.errors import OutOfMemory
from edgechat.native import logs
from edgechat.native.handles import Context, Model
from edgechat.native.params import LoadParams
logs.install()
load = LoadParams(context=1 << 22, threads=1)
model = Model(Path(sys.argv[1]), load)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
try:
    Context(model, load)
except OutOfMemory:
    print("told")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux holds programs to `ulimit -v`")
def test_a_load_over_a_limit_of_memory():
    found = subprocess.run([sys.executable, "-c", LIMITED, str(tiny())], capture_output=True, check=False)
    assert found.stdout == b"told\n", found.stderr
