"""Compares the speed of measuring perplexity and divergence with llama-perplexity's, in turns.

    python -m benchmarks.quality BASE.gguf MODEL.gguf LLAMA_BIN [--chunks 8] [--rounds 3] [--ctx 512]

Both score the same chunks of the shipped text with the same number of threads: first MODEL's perplexity, then
its divergence from BASE, using a base file written by llama-perplexity. Times run from the first chunk to the
last result and exclude loading. CPU time is reported as well, since it is more meaningful on a busy machine.
LLAMA_BIN is a folder that contains llama-perplexity. The scores are also compared.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from edgechat.bench.divergence import summary
from edgechat.bench.process import ask
from edgechat.bench.quality_files import (
    QualityTask,
    ScoredModel,
    ScoreFile,
    ScoringAnswer,
    read_text,
    scored,
    shipped_text,
)
from edgechat.planner.plan import LoadPlan

THREADS = os.cpu_count() or 1


class Stopwatch:
    """Times a child process from `start` until it has exited and been waited for."""

    def __init__(self) -> None:
        self._others = _children_cpu()
        self._began = self._cpu = 0.0

    def start(self) -> None:
        (child,) = psutil.Process().children()
        self._began, self._cpu = time.perf_counter(), sum(child.cpu_times()[:2])

    def stop(self) -> tuple[float, float]:
        """Return the elapsed seconds and the CPU seconds."""
        return time.perf_counter() - self._began, _children_cpu() - self._others - self._cpu


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def theirs(
    program: Path, model: Path, text: Path, n_ctx: int, n_chunks: int, *more: str
) -> tuple[tuple[float, float], str]:
    """Return llama-perplexity's times, measured from the first chunk on, and its output."""
    command = [program, "-m", model, "-f", text, "-c", n_ctx, "--chunks", n_chunks, "-t", THREADS, *more]
    said, watch = "", Stopwatch()
    with subprocess.Popen(
        [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if "n_seq=" in line:
                watch.start()
    assert process.returncode == 0, said
    return watch.stop(), said


def ours(
    model: Path, folder: Path, n_ctx: int, n_chunks: int, base_file: str = ""
) -> tuple[tuple[float, float], ScoreFile]:
    """Return edgechat's times, measured from the first chunk on, and the scores."""
    n_batch = min(n_ctx, 512)
    plan = LoadPlan(
        model_path=str(model),
        model_name=model.stem,
        context=n_ctx + 256,
        threads=THREADS,
        n_batch=n_batch,
        n_ubatch=n_batch,
        n_seq_max=1,
        n_outputs_max=n_ctx - n_ctx // 2 if n_ctx <= n_batch else n_batch,
    )
    path = folder / f"{time.perf_counter_ns()}.scores"
    file = ScoreFile(path, scored(n_ctx))
    file.begin(1.0)  # decode speed is not measured here
    task = QualityTask(
        text=str(shipped_text()),
        n_ctx=n_ctx,
        n_chunks=n_chunks,
        models=(ScoredModel(model.stem, plan, str(path)),),
        base_file=base_file,
    )
    watch = Stopwatch()

    def tell(said: str) -> None:
        if said == "scoring":
            watch.start()

    ask("quality", task, ScoringAnswer, tell, "")
    return watch.stop(), file


def _number(said: str, label: str) -> float:
    found = re.search(rf"{label}\s*[:=]\s*(-?[0-9.]+)", said)
    assert found is not None, said
    return float(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("llama_bin", type=Path)
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ctx", type=int, default=512)
    options = parser.parse_args()
    program, n_ctx, n_chunks = options.llama_bin / "llama-perplexity", options.ctx, options.chunks
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        text, base = folder / "text", folder / "base.kld"
        text.write_text(read_text(shipped_text()), encoding="utf-8")
        theirs(program, options.base, text, n_ctx, n_chunks, "--kl-divergence-base", str(base))
        for kind, more in (
            ("perplexity", ()),
            ("divergence", ("--kl-divergence", "--kl-divergence-base", str(base))),
        ):
            ratios = []
            for number in range(options.rounds):
                runs = {}
                for who in ("theirs", "ours") if number % 2 else ("ours", "theirs"):
                    if who == "theirs":
                        runs[who], said = theirs(program, options.model, text, n_ctx, n_chunks, *more)
                    else:
                        runs[who], file = ours(
                            options.model, folder, n_ctx, n_chunks, str(base) if more else ""
                        )
                (own, own_cpu), (their, their_cpu) = runs["ours"], runs["theirs"]
                ratios.append((their / own, their_cpu / own_cpu))
                both = f"edgechat {own:.2f} s ({own_cpu:.2f} of processors)"
                print(f"{kind}: {both}, llama-perplexity {their:.2f} s ({their_cpu:.2f})", flush=True)
            figures = summary(file.scores(), compared=bool(more))
            for what, found in zip(
                ("second", "second of processors"), zip(*ratios, strict=True), strict=True
            ):
                every = ", ".join(f"{ratio:.3f}" for ratio in sorted(found))
                print(f"{kind} per {what}, of llama-perplexity's: {statistics.median(found):.3f} ({every})")
            if figures.divergence is None:
                pairs = {"perplexity": (figures.perplexity.value, _number(said, "PPL"))}
            else:
                loss = figures.divergence
                pairs = {
                    "perplexity": (figures.perplexity.value, _number(said, r"Mean PPL\(Q\)")),
                    "mean": (loss.mean.value, _number(said, "Mean    KLD")),
                    "median": (loss.median.value, _number(said, "Median  KLD")),
                    "99.9 %": (loss.tail.value, _number(said, "99.9%   KLD")),
                    "same top": (100 * loss.same_top.value, _number(said, "Same top p")),
                }
            for name, (own, their) in pairs.items():
                print(f"  {name:<10} {own:.6f}, llama-perplexity {their:.6f}: {own / their - 1:+.2e}")


if __name__ == "__main__":
    main()
