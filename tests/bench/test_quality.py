"""`edgechat bench --quality` on real models: the scores, what is kept and resumed, what plans learn of it."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import llama_cpp.llama_cpp as lib
import msgspec
import numpy as np
import psutil
import pytest

from edgechat.base import paths
from edgechat.base.errors import BadRequest, DoesNotFit, EngineCrashed, ModelNotFound, NotDrawn
from edgechat.bench import quality
from edgechat.bench.divergence import KLD, summary
from edgechat.bench.process import ask
from edgechat.bench.quality import QualityRequest, measure_quality
from edgechat.bench.quality_child import score
from edgechat.bench.quality_files import (
    BaseFile,
    QualityTask,
    Scored,
    ScoredModel,
    ScoreFile,
    ScoringAnswer,
    file_bytes,
)
from edgechat.cli import plots
from edgechat.engine.backends.base import BatchPart
from edgechat.engine.worker.worker import open_backend
from edgechat.models.local.resolve import find_models
from edgechat.models.quality import kl_divergence, loss_of_file
from edgechat.planner.plan import LoadPlan
from edgechat.planner.prepare import prepare
from edgechat.planner.request import PlanRequest
from tests.cli.running import EDGECHAT, complaint, edgechat
from tests.kit import KINDS, MODELS_DIR, tiny
from tests.kit.build import made

pytestmark = pytest.mark.slow

N_CTX, N_CHUNKS = 256, 3
TEXT = (Path(__file__).parents[2] / "docs/glossary.md").read_bytes()[:6000]
PERPLEXITY = os.environ.get("LLAMA_PERPLEXITY") or shutil.which("llama-perplexity")


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.md"
    path.write_bytes(TEXT)
    return path


def quantized(kind, quant):
    """Return a model of the kit, quantized by llama.cpp: the kit's own quantizations are other models."""

    def write(path):
        params = lib.llama_model_quantize_default_params()
        params.ftype = {"Q8_0": lib.LLAMA_FTYPE_MOSTLY_Q8_0, "Q4_0": lib.LLAMA_FTYPE_MOSTLY_Q4_0}[quant]
        params.nthread = 1
        assert lib.llama_model_quantize(str(source).encode(), str(path).encode(), params) == 0

    source = tiny(kind)
    return made(MODELS_DIR / f"{source.stem}-{quant}.gguf", write)


@pytest.fixture
def folder(tmp_path):
    """A folder with one model in F32, Q8_0 and Q4_0."""
    shutil.copyfile(tiny("qwen3"), tmp_path / "small-F32.gguf")
    for quant in ("Q8_0", "Q4_0"):
        shutil.copyfile(quantized("qwen3", quant), tmp_path / f"small-{quant}.gguf")
    return tmp_path


def plan_of(path, n_ctx=N_CTX, n_batch=512, cache_type="f16"):
    return LoadPlan(
        model_path=str(path),
        model_name=path.stem,
        context=n_ctx + 256,
        threads=1,
        n_batch=min(n_ctx, n_batch),
        n_ubatch=min(n_ctx, n_batch),
        n_seq_max=1,
        n_outputs_max=min(n_ctx, n_batch),
        cache_type=cache_type,
    )


def figures_of(folder, text, models, **changes):
    """Score the text with models, all but the first compared with it; return their figures."""
    n_ctx = int(str(changes.pop("n_ctx", N_CTX)))
    n_batch = int(str(changes.pop("n_batch", 512)))
    scored_models = tuple(
        ScoredModel(path.stem, plan_of(path, n_ctx, n_batch), str(folder / f"{at}-{n_batch}.scores"))
        for at, path in enumerate(models)
    )
    fields = {"has_base": len(models) > 1, "n_chunks": N_CHUNKS} | changes
    task = QualityTask(text=str(text), n_ctx=n_ctx, models=scored_models, **fields)
    score(task, lambda _text: None)
    n_scored = n_ctx - 1 - n_ctx // 2
    compared = bool(task.has_base or task.base_file)
    return [
        summary(
            ScoreFile(Path(one.scores), n_scored).scores(),
            compared=compared and (at > 0 or not task.has_base),
        )
        for at, one in enumerate(scored_models)
    ]


def by_hand(path, tokens):
    """Return the logarithms of the probabilities [n, n_vocab] of the second half of a chunk, in float64."""
    backend = open_backend(plan_of(path), None)
    rows = backend.decode([BatchPart(0, 0, tokens.tolist(), len(tokens) - len(tokens) // 2)])
    logits = rows[:-1].astype(np.float64)
    backend.close()
    logits -= logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


@pytest.mark.parametrize("kind", ["dense", "windowed", "hybrid", "moe"])
def test_figures_are_those_of_the_whole_distributions(kind, text, tmp_path):
    base, small = tiny(kind), quantized(kind, "Q4_0")
    own, other = figures_of(tmp_path, text, [base, small])
    backend = open_backend(plan_of(base), None)
    tokens = backend.vocabulary.tokenize(TEXT.decode().removesuffix("\n"), bos=True, special=False)
    bos = backend.vocabulary.tokenize("", bos=True, special=False)
    backend.close()
    nll, kld = [], []
    for at in range(N_CHUNKS):
        chunk = np.array(tokens[at * N_CTX : (at + 1) * N_CTX])
        fed = np.array([*bos, *chunk[len(bos) :]])
        p, q = by_hand(base, fed), by_hand(small, fed)
        targets = chunk[N_CTX // 2 + 1 :]
        nll.extend(-p[np.arange(len(targets)), targets])
        kld.extend((np.exp(p) * (p - q)).sum(1))
    assert own.divergence is None
    assert own.n_tokens == len(nll)
    assert own.perplexity.value == pytest.approx(np.exp(np.mean(nll)), rel=1e-4)
    assert other.divergence is not None
    assert other.divergence.mean.value == pytest.approx(np.mean(kld), rel=1e-3)
    assert other.divergence.tail.value == pytest.approx(np.quantile(kld, 0.999), rel=1e-3)
    assert other.divergence.base_perplexity.value == pytest.approx(own.perplexity.value, rel=1e-6)


def test_mlx_models_are_measured_against_gguf_files(text, tmp_path):
    pytest.importorskip("mlx")
    from tests.kit.mlx import mlx_tiny

    n_ctx = 64
    folders = [mlx_tiny("qwen3", weights=weights) for weights in ("F32", "4bit")]
    plans = [plan_of(tiny("qwen3"), n_ctx), *(plan_of(folder, n_ctx) for folder in folders)]
    plans[1:] = [msgspec.structs.replace(plan, backend="mlx") for plan in plans[1:]]
    models = tuple(ScoredModel(str(at), plan, str(tmp_path / str(at))) for at, plan in enumerate(plans))
    task = QualityTask(text=str(text), n_ctx=n_ctx, n_chunks=2, models=models, has_base=True)
    score(task, lambda _text: None)
    _, same, less = (ScoreFile(Path(one.scores), 31).scores()[KLD].mean() for one in models)
    assert same < 1e-4  # the same weights, but for the KV cache in 16 bits
    assert same < less


def test_a_chunk_may_take_several_calls(text, tmp_path):
    models = [tiny("dense"), quantized("dense", "Q4_0")]
    once = figures_of(tmp_path, text, models)
    for n_batch in (64, 100):  # the last one scores tokens on both sides of the middle
        again = figures_of(tmp_path, text, models, n_batch=n_batch)
        for one, other in zip(once, again, strict=True):
            assert other.n_tokens == one.n_tokens
            assert other.perplexity.value == pytest.approx(one.perplexity.value, rel=5e-3)
        assert once[1].divergence is not None
        assert again[1].divergence is not None
        assert again[1].divergence.mean.value == pytest.approx(once[1].divergence.mean.value, rel=1e-2)


def test_a_model_does_not_differ_from_itself(text, tmp_path):
    _, same = figures_of(tmp_path, text, [tiny("dense")] * 2)
    assert same.divergence is not None
    assert abs(same.divergence.mean.value) < 1e-6
    assert same.divergence.same_top.value == 1


def test_a_base_file_takes_the_place_of_the_base(text, tmp_path):
    base, small = tiny("dense"), quantized("dense", "Q4_0")
    file = tmp_path / "base.kld"
    _, direct = figures_of(tmp_path, text, [base, small], save_base=str(file))
    with_file = BaseFile(file)
    assert file.stat().st_size == file_bytes(N_CTX, with_file.n_vocab, N_CHUNKS)
    (tmp_path / "from file").mkdir()
    (found,) = figures_of(tmp_path / "from file", text, [small], base_file=str(file))
    assert found.divergence is not None
    assert direct.divergence is not None
    assert found.perplexity.value == pytest.approx(direct.perplexity.value, rel=1e-6)
    # 16 bits for each logarithm, and what is less likely than e^-16 left out.
    assert found.divergence.mean.value == pytest.approx(direct.divergence.mean.value, rel=0.02)


def test_a_base_file_of_another_vocabulary_is_refused(text, tmp_path):
    file = tmp_path / "base.kld"
    figures_of(tmp_path, text, [tiny("dense")], save_base=str(file))
    with pytest.raises(BadRequest, match="tokens"):
        figures_of(tmp_path, text, [tiny("dense", n_vocab=600)], base_file=str(file))


def test_models_that_read_other_tokens_are_refused(text, tmp_path):
    with pytest.raises(BadRequest, match="different tokens"):
        figures_of(tmp_path, text, [tiny("dense"), tiny("dense", pieces=True)])


def test_a_short_text_is_refused(tmp_path):
    path = tmp_path / "text"
    path.write_text("A few words.")
    with pytest.raises(BadRequest, match="a chunk needs 256"):
        figures_of(tmp_path, path, [tiny("dense")])


def wish(*names, text=None, **changes):
    fields = {"names": tuple(map(str, names)), "plan": PlanRequest(vision=False), "n_ctx": N_CTX}
    return QualityRequest(**(fields | {"n_chunks": N_CHUNKS, "text": text} | changes))


def measured(request):
    return measure_quality(request, lambda _text: None)


def test_interrupted_it_leaves_no_unfinished_base_file(folder, text):
    saved = folder / "saved" / "x.base"
    saved.parent.mkdir()
    text.write_bytes(TEXT * 5)  # it must not be at the end when the first chunk is told

    def interrupted(told):
        if told.startswith("chunk 1 "):
            assert [path.name for path in saved.parent.iterdir()] == [".part-x.base"]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_quality(wish(folder / "small-Q4_0.gguf", text=text, save_base=saved, n_chunks=0), interrupted)
    assert list(saved.parent.iterdir()) == []


def test_the_most_exact_file_beside_a_model_is_the_base_and_nothing_is_measured_twice(
    folder, text, monkeypatch
):
    report = measured(wish(folder / "small-Q4_0.gguf", text=text))
    assert (report.base, report.title, report.n_chunks) == ("F32", "small", N_CHUNKS)
    base, small = report.models
    assert base.is_base
    assert base.figures.divergence is None
    assert small.figures.divergence is not None
    assert small.figures.divergence.mean.value > 0
    assert [one.is_chosen for one in report.models].count(True) == 1
    assert small.tokens_per_second > 0
    monkeypatch.setattr(quality, "ask", None)
    again = measured(wish(folder / "small-Q4_0.gguf", text=text))
    assert [one.figures for one in again.models] == [one.figures for one in report.models]
    assert [one.tokens_per_second for one in again.models] == [one.tokens_per_second for one in report.models]
    fewer = measured(wish(folder / "small-Q4_0.gguf", text=text, n_chunks=2))
    assert fewer.models[1].figures.n_tokens == 2 * (N_CTX // 2 - 1)


def test_against_a_quantization_or_a_name(folder, text):
    small = folder / "small-Q4_0.gguf"
    assert measured(wish(small, text=text, against="q8_0")).base == "Q8_0"
    assert measured(wish(small, text=text, against=str(folder / "small-F32.gguf"))).base == "F32"
    with pytest.raises(ModelNotFound) as caught:
        measured(wish(small, text=text, against="Q6_K"))
    assert "Q6_K" in caught.value.message
    assert "Q8_0" in str(caught.value.hint)


def test_a_model_is_not_compared_with_itself(folder, text):
    with pytest.raises(BadRequest, match="itself"):
        measured(wish(folder / "small-F32.gguf", text=text, against="F32"))


def test_several_files_and_types_of_cache(folder, text):
    files = [folder / f"small-{weights}.gguf" for weights in ("Q8_0", "Q4_0", "F32")]
    report = measured(wish(*files, text=text, cache_types=("q8_0", "q4_0")))
    labels = [one.model.label for one in report.models]
    assert labels[:3] == ["F32", "Q8_0", "Q4_0"]
    assert set(labels[3:]) == {f"{w}, KV in {c}" for w in ("F32", "Q8_0", "Q4_0") for c in ("q8_0", "q4_0")}
    losses = {one.model.label: plots.loss(one) for one in report.models}
    assert 0 < losses["Q8_0"] < losses["Q4_0"]
    assert 0 < losses["F32, KV in q8_0"] < losses["F32, KV in q4_0"]


def test_a_model_alone_has_a_perplexity(tmp_path, text):
    shutil.copyfile(tiny("dense"), tmp_path / "alone.gguf")
    report = measured(wish(tmp_path / "alone.gguf", text=text))
    assert report.base is None
    (one,) = report.models
    assert one.figures.divergence is None
    assert one.figures.perplexity.value > 1


def test_a_killed_measurement_is_resumed_with_the_same_result(folder, text, tmp_path):
    models = [folder / "small-F32.gguf", folder / "small-Q4_0.gguf"]
    n_scored = N_CTX - 1 - N_CTX // 2
    expected = figures_of(tmp_path, text, models, n_chunks=0)
    scored_models = tuple(
        ScoredModel(path.stem, plan_of(path), str(tmp_path / f"{path.stem}.scores")) for path in models
    )
    task = QualityTask(text=str(text), n_ctx=N_CTX, n_chunks=0, models=scored_models, has_base=True)
    files = [ScoreFile(Path(one.scores), n_scored) for one in scored_models]
    n_killed = 0
    for stop_after in (1, 5, 10, 1000):

        def kill(said, stop_after=stop_after):
            found = re.match(r"chunk (\d+) of", said)
            if found is not None and int(found[1]) >= stop_after:
                for child in psutil.Process().children():
                    with contextlib.suppress(psutil.NoSuchProcess):  # killed, and still telling
                        if child.cmdline()[-1:] == ["quality"]:
                            child.kill()

        try:
            answer = ask("quality", task, ScoringAnswer, kill, "")
        except EngineCrashed:
            n_killed += 1
            # A torn write, beside what kills leave by themselves.
            with Path(scored_models[1].scores).open("ab") as file:
                file.write(b"half of a chunk")
    assert n_killed >= 2  # on a busy machine one may come too late
    assert isinstance(answer, Scored)
    assert all(file.n_chunks == answer.n_chunks for file in files)
    for file, figures in zip(files, expected, strict=True):
        assert summary(file.scores(), compared=figures.divergence is not None) == figures


def test_plans_say_what_was_measured(folder, text):
    small = folder / "small-Q4_0.gguf"
    assert prepare(str(small)).kl_divergence.source == kl_divergence("Q4_0").source
    few = measured(wish(small, text=text))
    assert few.models[1].figures.n_tokens < 1000
    assert not prepare(str(small)).kl_divergence.measured
    report = measured(wish(small, text=text, n_chunks=10))
    found = prepare(str(small)).kl_divergence
    loss = report.models[1].figures.divergence
    assert found is not None
    assert loss is not None
    assert found.measured
    assert found.value == loss.mean.value
    assert "measured on this machine against F32" in found.source
    moved = folder / "elsewhere.gguf"
    os.rename(small, moved)
    assert loss_of_file("Q4_0", moved).measured
    with moved.open("r+b") as file:
        file.seek(-9, os.SEEK_END)
        file.write(b"a fine-tune"[:9])
    os.utime(moved, (1, 1))
    assert not loss_of_file("Q4_0", moved).measured


def test_a_lossy_base_corrects_nothing(folder, text):
    small = folder / "small-Q4_0.gguf"
    shutil.copyfile(tiny("qwen3", weights="Q4_0", seed=2), folder / "small-Q5_0.gguf")  # by its name alone
    measured(wish(small, text=text, n_chunks=10, against="Q5_0"))
    assert not loss_of_file("Q4_0", small).measured


def test_mlx_models_are_left_out_where_mlx_is_missing(folder, monkeypatch):
    (here,) = find_models(str(folder / "small-Q4_0.gguf"))
    other = replace(here, found=replace(here.found, format="mlx"))
    monkeypatch.setattr(quality.mlx, "missing", lambda: "mlx")
    assert quality._usable([here, other]) == [here]
    assert quality._usable([other]) == [other]
    monkeypatch.setattr(quality.mlx, "missing", lambda: "")
    assert quality._usable([here, other]) == [here, other]


def test_models_are_loaded_in_groups_that_fit(folder, monkeypatch):
    request = PlanRequest(vision=False)
    names = [str(folder / f"small-{weights}.gguf") for weights in ("F32", "Q8_0", "Q4_0")]
    found = quality.select(names, request, n_ctx=N_CTX, against=None, cache_types=(), has_base_file=False)
    assert [len(group) for group in quality.groups(found, anyway=False)] == [3]
    monkeypatch.setattr(quality, "_excess", lambda models: max(0, len(models) - 2))
    together = quality.groups(found, anyway=False)
    assert [[one.label for one in group] for group in together] == [["F32", "Q8_0"], ["F32", "Q4_0"]]
    monkeypatch.setattr(quality, "_excess", lambda models: 1 << 30)
    with pytest.raises(DoesNotFit) as caught:
        quality.groups(found, anyway=False)
    assert "--save-base" in str(caught.value.hint)
    assert len(quality.groups(found, anyway=True)) == 1


def test_the_command_prints_a_table_and_a_plot(folder, text):
    files = [folder / f"small-{weights}.gguf" for weights in ("Q4_0", "Q8_0")]
    options = ("--text", text, "--chunks", "2", "--ctx", "512")
    run = edgechat("bench", *files, "--quality", *options, "--plot", "-")
    assert run.returncode == 0, run.stderr
    for part in (
        "F32",
        "Q8_0",
        "Q4_0",
        "PERPLEXITY",
        "DIVERGENCE",
        "99.9 %",
        "Front:",
        "size in GiB",
    ):
        assert part in run.stdout
    assert all(len(line) < 86 for line in run.stdout.splitlines())
    picture = folder / "quality.svg"
    again = edgechat("bench", *files, "--quality", *options, "--json", "--plot", picture)
    assert again.returncode == 0, again.stderr
    found = json.loads(again.stdout)
    assert [one["quant"] for one in found["models"]] == ["F32", "Q8_0", "Q4_0"]
    assert found["models"][0]["divergence"] is None
    assert found["models"][2]["divergence"]["mean"]["value"] > 0
    assert found["models"][2]["on_front"][0] == "size"
    assert b"<svg" in picture.read_bytes()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--against", "F16"), "--quality"),
        (("--chunks", "3"), "--quality"),
        (("--quality", "--cache-type", "q9"), "q9"),
        (("--quality", "--base-file", "x", "--against", "F16"), "--base-file"),
        (("--quality", "--plot", "x.gif"), ".svg"),
        (("--quality", "--text", "nowhere.txt"), "nowhere.txt"),
        (("--quality", "--base-file", "nowhere.kld"), "nowhere.kld"),
        (("--quality", "--against", "Q1_XXL"), "Q1_XXL"),
    ],
)
def test_mistakes_are_explained(words, said):
    run = edgechat("bench", "guide", *words)
    assert run.returncode != 0
    assert said in run.stderr
    assert "Traceback" not in run.stderr


def test_several_models_need_quality():
    assert "--quality" in edgechat("bench", "guide", "guide").stderr
    assert "nosuch" in complaint(edgechat("bench", "nosuch", "--quality"))


def test_ctrl_c_keeps_what_was_scored(folder):
    command = [*EDGECHAT, "bench", str(folder / "small-Q4_0.gguf"), "--quality", "--chunks", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    scores = paths.cache_dir() / "quality"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not any(
        path.stat().st_size > 4096 for path in scores.glob("*.scores")
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "kept" in complaints


def test_a_plot_says_what_it_can_draw(tmp_path):
    with pytest.raises(NotDrawn, match="svg"):
        plots.check(tmp_path / "quality.txt", plots.QUALITY_KINDS)


def by_llama_cpp(*words, last):
    """Return what llama-perplexity prints, `last` at its end.

    It ends without waiting for its thread that prints, so that the end may be missing.
    """
    command = [str(PERPLEXITY), *map(str, words), "-t", "1", "--no-warmup"]
    for _ in range(20):
        run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert run.returncode == 0, run.stderr
        if last in run.stdout + run.stderr:
            return run.stdout + run.stderr
    raise AssertionError(f"no {last!r}: {run.stdout}{run.stderr}")


def printed(said, label):
    match = re.search(rf"{label}\s*[:=]\s*([0-9.]+)(?:\s*(?:±|\+/-)\s*([0-9.]+))?", said)
    assert match is not None, said
    return float(match[1]), float(match[2] or 0)


@pytest.mark.skipif(PERPLEXITY is None, reason="llama-perplexity is not on the PATH, nor in LLAMA_PERPLEXITY")
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_llama_perplexity_finds_the_same(kind, text, tmp_path):
    base, small = tiny(kind), quantized(kind, "Q4_0")
    options = ("-f", text, "-c", N_CTX, "-b", N_CTX, "-ub", N_CTX, "--chunks", "10")
    file = tmp_path / "theirs.kld"
    alone = by_llama_cpp("-m", base, *options, "--kl-divergence-base", file, last="Final estimate: PPL")
    compare = ("-m", small, *options, "--kl-divergence", "--kl-divergence-base")
    said = by_llama_cpp(*compare, file, last="Same top p: ")
    own_file = tmp_path / "ours.kld"
    (own,) = figures_of(tmp_path, text, [base], n_chunks=10, save_base=str(own_file))
    assert own.perplexity.value == pytest.approx(printed(alone, "PPL")[0], rel=1e-3)
    assert own.perplexity.error == pytest.approx(printed(alone, "PPL")[1], rel=2e-2)
    (tmp_path / "theirs").mkdir()
    (found,) = figures_of(tmp_path / "theirs", text, [small], n_chunks=0, base_file=str(file))
    loss = found.divergence
    assert loss is not None
    assert found.perplexity.value == pytest.approx(printed(said, r"Mean PPL\(Q\)")[0], rel=1e-3)
    assert loss.mean.value == pytest.approx(printed(said, "Mean    KLD")[0], rel=1e-3, abs=2e-6)
    assert loss.mean.error == pytest.approx(printed(said, "Mean    KLD")[1], rel=1e-2, abs=2e-6)
    assert loss.median.value == pytest.approx(printed(said, "Median  KLD")[0], rel=5e-3, abs=2e-6)
    assert loss.tail.value == pytest.approx(printed(said, "99.9%   KLD")[0], rel=5e-3)
    assert 100 * loss.same_top.value == pytest.approx(printed(said, "Same top p")[0], abs=0.2)
    assert loss.log_ratio.value == pytest.approx(
        float(re.search(r"Mean ln\(PPL\(Q\)/PPL\(base\)\)\s*:\s*(-?[0-9.]+)", said)[1]), abs=1e-4
    )
    # And llama.cpp reads what edgechat writes.
    theirs = by_llama_cpp(*compare, own_file, last="Same top p: ")
    assert printed(theirs, "Mean    KLD")[0] == pytest.approx(loss.mean.value, rel=1e-3, abs=2e-6)
