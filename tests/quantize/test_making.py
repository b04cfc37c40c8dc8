"""`edgechat quantize` on kit models: files like llama-quantize's, sizes and losses kept to, and kills."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import gguf
import numpy as np
import psutil
import pytest

from edgechat.models.formats.gguf import read_header, read_model
from edgechat.models.formats.quants import GgmlType
from edgechat.models.local.inventory import inventory
from edgechat.native.quantization import QuantizeParams, quantize
from edgechat.quantize.imatrix_file import read_imatrix
from tests.cli.running import EDGECHAT, complaint, edgechat
from tests.kit import tiny
from tests.kit.build import Spec, build, write
from tests.kit.mlx import mlx_tiny
from tests.kit.shapes import DENSE, MOE, QWEN35

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured")]

WIDE = DENSE.sized(n_embd=256, n_ff=512)
"""Rows of whole blocks of K-quants."""
SHALLOW = WIDE.sized(n_layers=1)
"""Each type is tried for each of its tensors."""
TEXT = "".join(f"Line {n}: the answer to {n % 7} times {n % 11} is {n % 7 * (n % 11)}.\n" for n in range(80))


def program(name):
    """Return a program of llama.cpp, of the build that llama-cpp-python contains."""
    found = os.environ.get(name.upper().replace("-", "_")) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def source(shape=WIDE, weights="F16"):
    return build(Spec(shape=shape, name=f"wide-{shape.arch}", weights=weights))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def folder(home):
    return home / "data" / "models"


Contents = tuple[dict[str, object], dict[str, tuple[str, bytes]]]


def contents(path):
    """Return a file's metadata without what says how it was made, and its tensors."""
    header = read_header(path)
    made = ("general.quantized_by", "edgechat.", "quantize.")
    metadata = {key: value for key, value in header.metadata.items() if not key.startswith(made)}
    tensors = gguf.GGUFReader(path).tensors
    return metadata, {tensor.name: (tensor.tensor_type.name, tensor.data.tobytes()) for tensor in tensors}


def test_a_file_is_listed_says_how_it_was_made_and_generates(folder):
    run = edgechat("quantize", source(), "q4_k", "--name", "small", "--json")
    assert run.returncode == 0, run.stderr
    made = json.loads(run.stdout)
    path = folder / "small.gguf"
    assert (made["path"], made["level"], made["size"]) == (str(path), "Q4_K_M", path.stat().st_size)
    assert made["types"]["blk.0.attn_q.weight"] == "Q4_K"
    header = read_model(path)
    assert header.quant == "Q4_K_M"
    assert str(header.metadata["general.quantized_by"]).startswith("edgechat ")
    assert header.metadata["edgechat.quantize.sensitivity"] == source().name
    assert "small" in [model.name for model in inventory().models]
    assert [one.name for one in folder.iterdir()] == ["small.gguf"]
    reply = edgechat("run", "small", "hello", "--max-tokens", "3")
    assert reply.returncode == 0, reply.stderr


@pytest.mark.values
@pytest.mark.parametrize("level", ["Q8_0", "Q4_K_M", "Q3_K_M", "Q2_K", "IQ4_XS", "BF16", "F32"])
@pytest.mark.parametrize("shape", [WIDE, QWEN35, MOE], ids=["dense", "hybrid", "experts"])
def test_the_bytes_are_llama_cpps(level, shape, folder, tmp_path):
    theirs = tmp_path / "theirs.gguf"
    command = [program("llama-quantize"), str(source(shape)), str(theirs), level]
    run = edgechat("quantize", source(shape), level, "--name", "ours")
    assert run.returncode == 0, run.stderr
    subprocess.run(command, check=True, capture_output=True)
    assert contents(folder / "ours.gguf") == contents(theirs)


def test_a_dry_run_tells_size_and_types_and_writes_nothing(folder):
    told = json.loads(edgechat("quantize", source(), "Q4_K_M", "--dry-run", "--json").stdout)
    assert not folder.exists()
    made = json.loads(edgechat("quantize", source(), "Q4_K_M", "--json").stdout)
    assert told["types"] == made["types"]
    assert 0 <= told["size"] - made["size"] <= 1 << 16


def test_the_name_is_the_sources_with_the_level_and_is_never_taken_twice(folder, tmp_path):
    copy = Path(shutil.copy(source(), tmp_path / "Model-F16.gguf"))
    assert edgechat("quantize", copy, "Q8_0").returncode == 0
    before = (folder / "Model-Q8_0.gguf").stat()
    assert "already exists" in complaint(edgechat("quantize", copy, "Q8_0"))
    assert (folder / "Model-Q8_0.gguf").stat().st_mtime_ns == before.st_mtime_ns


def test_shards_are_read_and_kept_where_that_is_asked_for(folder, tmp_path):
    spec = Spec(shape=WIDE, name="split", weights="F16")
    write(spec, tmp_path / "split.gguf", split_max_tensors=9)
    first = min(tmp_path.glob("split-00001-of-*.gguf"))
    assert edgechat("quantize", first, "Q4_K_M", "--name", "one").returncode == 0
    assert edgechat("quantize", first, "Q4_K_M", "--name", "many", "--keep-split").returncode == 0
    shards = sorted(folder.glob("many-*-of-*.gguf"))
    assert len(shards) == len(list(tmp_path.glob("split-*.gguf"))) > 1
    together = {name: data for shard in shards for name, data in contents(shard)[1].items()}
    assert together == contents(folder / "one.gguf")[1]
    assert {"one", "many"} <= {model.name for model in inventory().models}


def test_a_quantized_source_is_warned_of(folder):
    run = edgechat("quantize", source(weights="Q8_0"), "Q4_K_M", "--name", "again")
    assert run.returncode == 0
    assert "already quantized (Q8_0)" in run.stderr
    assert (folder / "again.gguf").exists()


def test_levels_that_need_an_importance_matrix_say_so_or_get_it(folder, text):
    message = complaint(edgechat("quantize", source(), "IQ2_XXS", "--name", "tiny"))
    assert "--imatrix" in message
    assert list(folder.glob("**/*")) == []
    run = edgechat("quantize", source(), "IQ2_XXS", "--name", "tiny", "--imatrix", text)
    assert run.returncode == 0, run.stderr
    metadata = read_model(folder / "tiny.gguf").metadata
    assert metadata["quantize.imatrix.dataset"] == "text.txt"
    assert metadata["quantize.imatrix.chunks_count"] == len(TEXT) // 512


@pytest.mark.parametrize("shape", [WIDE, MOE], ids=["dense", "experts"])
def test_an_importance_matrix_is_that_of_llama_imatrix(shape, tmp_path, text):
    ours, theirs = tmp_path / "ours.gguf", tmp_path / "theirs.gguf"
    command = [program("llama-imatrix"), "-m", str(source(shape)), "-f", str(text), "-o", str(theirs)]
    run = edgechat("quantize", source(shape), "--imatrix", text, "--save-imatrix", ours)
    assert run.returncode == 0, run.stderr
    subprocess.run([*command, "--no-ppl", "-ngl", "0"], check=True, capture_output=True)
    mine, other = read_imatrix(ours), read_imatrix(theirs)
    assert (mine.n_chunks, mine.chunk_size) == (other.n_chunks, other.chunk_size)
    assert mine.squares.keys() == other.squares.keys()
    for name, squares in other.squares.items():
        np.testing.assert_array_equal(mine.counts[name], other.counts[name], err_msg=name)
        np.testing.assert_allclose(mine.squares[name], squares, rtol=1e-3, err_msg=name)


def test_a_saved_matrix_is_used_again(folder, tmp_path, text):
    saved = tmp_path / "saved.gguf"
    assert edgechat("quantize", source(), "--imatrix", text, "--save-imatrix", saved).returncode == 0
    assert edgechat("quantize", source(), "Q3_K_M", "--name", "a", "--imatrix", text).returncode == 0
    assert edgechat("quantize", source(), "Q3_K_M", "--name", "b", "--imatrix", saved).returncode == 0
    assert contents(folder / "a.gguf") == contents(folder / "b.gguf")
    quantize(source(), tmp_path / "plain.gguf", QuantizeParams(file_type=12))
    assert contents(folder / "a.gguf")[1] != contents(tmp_path / "plain.gguf")[1]
    again = edgechat("quantize", source(), "--imatrix", saved, "--save-imatrix", tmp_path / "again.gguf")
    assert "is already an importance matrix" in complaint(again)


def test_a_matrix_that_cannot_be_saved_leaves_nothing_and_names_its_path(tmp_path, text):
    (taken := tmp_path / "saved" / "taken").mkdir(parents=True)
    run = edgechat("quantize", source(), "--imatrix", text, "--save-imatrix", taken)
    assert f"written to {taken}: Is a directory" in complaint(run)
    assert list(taken.parent.iterdir()) == [taken]


def test_a_mixture_has_the_size_and_is_no_worse_than_the_level_of_that_size(folder, text):
    level = json.loads(edgechat("quantize", source(SHALLOW), "Q4_K_M", "--dry-run", "--json").stdout)
    size = f"{level['size'] / 2**20:.3f}MiB"
    run = edgechat("quantize", source(SHALLOW), "--fit", size, "--name", "fit", "--imatrix", text, "--json")
    assert run.returncode == 0, run.stderr
    made = json.loads(run.stdout)
    assert made["size"] == (folder / "fit.gguf").stat().st_size <= level["size"]
    assert made["loss"] <= made["compared"]["loss"]
    types = {tensor.name: tensor.type for tensor in read_model(folder / "fit.gguf").tensors}
    assert all(kind is GgmlType.F32 for name, kind in types.items() if "norm" in name)


def test_what_fits_the_machine_is_no_larger_than_q8_0(folder, text):
    largest = json.loads(edgechat("quantize", source(SHALLOW), "Q8_0", "--dry-run", "--json").stdout)["size"]
    words = ["--fit", "auto", "--ctx", "2048", "--name", "auto", "--imatrix", text, "--json"]
    run = edgechat("quantize", source(SHALLOW), *words)
    assert run.returncode == 0, run.stderr
    assert largest // 2 < json.loads(run.stdout)["size"] <= largest
    assert "can stay as it is" in run.stderr


def test_a_size_that_nothing_has_is_refused(folder, text):
    message = complaint(edgechat("quantize", source(SHALLOW), "--fit", "100KiB", "--imatrix", text))
    assert "cannot be made as small" in message
    assert "--fit" in message
    assert list(folder.glob("**/*")) == []


def test_a_loss_is_kept_to_by_a_file_that_is_smaller_than_the_source(folder, text):
    run = edgechat(
        "quantize", source(SHALLOW), "--loss", "0.05", "--name", "loss", "--imatrix", text, "--json"
    )
    assert run.returncode == 0, run.stderr
    made = json.loads(run.stdout)
    assert 0 < made["loss"] <= 0.05
    assert made["size"] == (folder / "loss.gguf").stat().st_size < source(SHALLOW).stat().st_size
    assert len(set(made["types"].values())) > 1


def test_recurrent_layers_keep_eight_bits_of_their_output(folder, text):
    hybrid = source(QWEN35.sized(n_embd=256, n_ff=512))
    run = edgechat("quantize", hybrid, "--fit", "0.9MiB", "--name", "hybrid", "--imatrix", text, "--json")
    message = run.stderr
    if run.returncode:  # its smallest mixture is larger
        size = message.rpartition("--fit ")[2].strip()
        run = edgechat("quantize", hybrid, "--fit", size, "--name", "hybrid", "--imatrix", text, "--json")
    assert run.returncode == 0, run.stderr
    types = json.loads(run.stdout)["types"]
    kept = {kind for name, kind in types.items() if name.endswith("ssm_out.weight")}
    assert kept
    assert kept <= {"Q8_0", "F16"}
    assert set(types.values()) - kept


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["Q4_KM"], "Did you mean Q4_K_M"),
        (["Q4_K_M", "--fit", "1GiB"], "one of QUANT, --fit and --loss"),
        ([], "missing"),
        (["--fit", "6"], "no unit"),
        (["--loss", "0.02", "--dry-run"], "needs a quantization"),
        (["Q4_K_M", "--ctx", "4096"], "applies to --fit auto"),
        (["Q4_K_M", "--imatrix", "nothing.txt"], "is not a file"),
    ],
)
def test_what_makes_no_sense_is_answered(words, answer):
    run = edgechat("quantize", source(), *words)
    assert run.returncode in (1, 2)
    assert answer in run.stderr


def test_a_folder_of_safetensors_is_refused_with_what_to_do():
    assert "convert_hf_to_gguf.py" in complaint(edgechat("quantize", mlx_tiny(), "Q4_K_M"))


def phases():
    """Return what is there, inside the folder of an unfinished model, while something is being done."""
    return {
        "matrix": lambda draft: True,
        "probing": lambda draft: (draft / "imatrix.gguf").exists(),
        "writing": lambda draft: (draft / "mixed.gguf").exists(),
        "measuring": lambda draft: (draft / "plain.gguf").exists(),
    }


@pytest.mark.parametrize("phase", list(phases()))
def test_a_kill_in_any_phase_leaves_no_file_with_a_name(phase, folder, text):
    command = ["quantize", str(source()), "--fit", "0.8MiB", "--name", "killed", "--imatrix", str(text)]
    process = subprocess.Popen([*EDGECHAT, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    has_begun, children = phases()[phase], []
    while process.poll() is None:
        drafts = list(folder.glob(".*.part"))
        if drafts and has_begun(drafts[0]):
            children = psutil.Process(process.pid).children(recursive=True)
        if children:
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert children, "it ended before it could be killed"
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    assert [path.name for path in folder.iterdir() if not path.name.startswith(".")] == []
    assert "killed" not in [model.name for model in inventory().models]
    # The next one is not disturbed, and removes what was left once that is old.
    for left in [*folder.glob(".*.part"), *folder.glob(".*.part/*")]:
        os.utime(left, (1, 1))
    assert edgechat("quantize", source(), "Q8_0", "--name", "killed").returncode == 0
    assert [path.name for path in folder.iterdir()] == ["killed.gguf"]


def test_interrupted_it_cleans_up(folder, text):
    command = ["quantize", str(source()), "--fit", "0.8MiB", "--imatrix", str(text)]
    process = subprocess.Popen(
        [*EDGECHAT, *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not list(folder.glob(".*.part/imatrix.gguf")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert list(folder.iterdir()) == []


def test_a_kit_model_of_another_kind_is_quantized_too(folder):
    assert edgechat("quantize", tiny("bert", weights="F16"), "Q8_0", "--name", "bert").returncode == 0
    assert read_model(folder / "bert.gguf").quant == "Q8_0"
