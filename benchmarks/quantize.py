"""Compares `edgechat quantize --fit` with plain mixtures of the same size by divergence on held-out text.

    python -m benchmarks.quantize MODEL.gguf --speed LLAMA-QUANTIZE [--rounds 3]
    python -m benchmarks.quantize MODEL.gguf [--sizes Q4_K_M,Q3_K_M] [--chunks 4] [--unround]

MODEL is in F16. If it is quantized instead, its weights are first dequantized to F16. Such weights lie on the
grid of their original types, so quantizing to the same types costs almost nothing; --unround moves each
weight by up to half a step, which makes it like a weight that was never quantized.

The importance matrix and the tensors' sensitivities come from one half of the shipped text; the files
themselves are then measured on the other half.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from edgechat.base import paths
from edgechat.models.formats.gguf import read_header
from edgechat.quantize.making import (
    PLAIN_LEVELS,
    Source,
    chosen_types,
    level_types,
    reading_params,
    sizes_of,
    take_step,
)
from edgechat.quantize.mixtures import LEVELS, allocate
from edgechat.quantize.steps import ImatrixStep, MeasureStep, ProbeStep, WriteStep

PIECE = 2400


def halves(folder: Path, n_bytes: int) -> tuple[Path, Path]:
    """Write two non-overlapping texts of `n_bytes` characters each; return their paths."""
    text = lzma.decompress(paths.shipped("quality.txt.xz").read_bytes()).decode()
    files = folder / "calibration.txt", folder / "held-out.txt"
    step = max(2, len(text) // n_bytes // 2 * 2)
    pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
    for number, file in enumerate(files):
        file.write_text("".join(pieces[number::step])[:n_bytes])
    return files


def write(
    source: Path, target: Path, level: str, types: dict[str, str] | None = None, imatrix: str = ""
) -> Path:
    """Write a quantized file; return its path."""
    take_step(
        WriteStep(
            source=str(source),
            target=str(target),
            file_type=LEVELS[level],
            threads=os.cpu_count() or 1,
            types=types or {},
            imatrix=imatrix,
        ),
        lambda _text: None,
    )
    return target


def unround(path: Path, quantized: Path) -> None:
    """Move each weight in an F16 file by up to half a step of its original type, in place."""
    random = np.random.default_rng(1)
    header, before = read_header(path), {t.name: t for t in read_header(quantized).tensors}
    for tensor in header.tensors:
        if tensor.type.name != "F16" or before[tensor.name].type.name in ("F16", "F32"):
            continue
        data = np.memmap(path, np.float16, "r+", header.data_offset + tensor.offset, (tensor.n_elements,))
        width = 16
        for start in range(0, len(data), width << 16):
            part = np.array(data[start : start + (width << 16)], np.float32).reshape(-1, width)
            gaps = np.diff(np.sort(part, 1), axis=1)
            largest = np.abs(part).max(1, keepdims=True)
            gaps[gaps < largest / 300] = np.inf  # equal except for rounding to 16 bits
            step = gaps.min(1, keepdims=True)
            step[~np.isfinite(step)] = 0
            part += random.uniform(-0.5, 0.5, part.shape).astype(np.float32) * step
            data[start : start + (width << 16)] = part.ravel().astype(np.float16)
        data.flush()


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--sizes", default="Q4_K_M,Q3_K_M")
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--characters", type=int, default=40_000)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--probes", type=int, default=2)
    parser.add_argument("--unround", action="store_true")
    parser.add_argument("--speed", metavar="LLAMA-QUANTIZE", help="time it against that program instead")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.model.parent) as name:
        folder = Path(name)
        found = speed(options, folder) if options.speed else measure(options, folder)
        print(json.dumps(found, indent=1))


def speed(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Return both programs' times for Q4_K_M, in seconds; they take turns, and outputs are deleted."""
    seconds: dict[str, list[float]] = {"edgechat": [], "llama-quantize": []}
    source, target = options.model, folder / "out.gguf"
    command = [options.speed, str(source), str(target), "Q4_K_M", str(os.cpu_count())]
    for _ in range(options.rounds):
        for name, times in seconds.items():
            begun = time.perf_counter()
            if name == "edgechat":
                write(source, target, "Q4_K_M")
            else:
                subprocess.run(command, check=True, capture_output=True)
            times.append(time.perf_counter() - begun)
            target.unlink()
    theirs, ours = min(seconds["llama-quantize"]), min(seconds["edgechat"])
    return seconds | {"speed over llama-quantize": round(theirs / ours, 3)}


def measure(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure sizes and divergences; return the figures."""
    begun = time.monotonic()

    def tell(text: str) -> None:
        print(f"\r\x1b[K{time.monotonic() - begun:.0f} s {text}", end="", flush=True)

    calibration, held_out = halves(folder, options.characters)
    source = Source(str(options.model))
    if source.is_quantized:
        file = write(source.path, folder / "source.gguf", "F16")
        if options.unround:
            unround(file, options.model)
        source = Source(str(file))
    load, imatrix = reading_params(source.path), folder / "imatrix.gguf"
    take_step(ImatrixStep(str(source.path), load, str(calibration), str(imatrix)), tell)
    levels = dict(zip(PLAIN_LEVELS, level_types(source, PLAIN_LEVELS, has_importance=True), strict=True))
    plain = dict(zip(PLAIN_LEVELS, level_types(source, PLAIN_LEVELS, has_importance=False), strict=True))
    names = tuple(
        t.name for t in source.header.tensors if any(types.get(t.name) for types in levels.values())
    )
    step = ProbeStep(
        tuple(map(str, source.paths)),
        load,
        str(calibration),
        str(imatrix),
        names,
        options.groups,
        options.probes,
    )
    table = take_step(step, tell).options
    files: dict[str, Path] = {}
    for level in options.sizes.split(","):
        files[f"{level} plain"] = write(source.path, folder / f"{level}.gguf", level)
        files[f"{level} imatrix"] = write(source.path, folder / f"{level}-i.gguf", level, None, str(imatrix))
        sizes = sizes_of(source.header, plain[level])
        types = chosen_types(allocate(table, sum(sizes[name] for name in names)))
        files[f"{level} fit"] = write(source.path, folder / f"{level}-f.gguf", level, types, str(imatrix))
        tell(f"{level} written")
    paths_ = tuple(str(file) for file in files.values())
    answer = take_step(MeasureStep(str(source.path), paths_, load, str(held_out), options.chunks), tell)
    print(f"\n{time.monotonic() - begun:.0f} s, {answer.n_tokens} tokens")
    return {
        name: {"bytes": file.stat().st_size, "kld": round(loss, 6)}
        for (name, file), loss in zip(files.items(), answer.losses, strict=True)
    }


if __name__ == "__main__":
    main()
