"""Write edgechat/base/data/skeletons.bin: the header of every model in the catalogue, at each quantization.

$ python packaging/catalogue/build.py [--check]

--check writes nothing and fails if the shipped file differs. To add a model, put its dimensions into
shapes.py, what is known about its files into sizes.toml and its entry into models.toml, then run this again.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from mixtures import LADDER, f16, placed, quantized, tensor
from shapes import PARAMETERS, SHAPES

from edgechat.models.catalogue import CatalogueEntry, read_catalogue
from edgechat.models.formats.header import ModelHeader
from edgechat.models.formats.quants import GgmlType
from edgechat.models.shipped import pack_all

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "edgechat" / "base" / "data" / "skeletons.bin"
MAX_OFF = 0.015
"""Headers whose size is off by more than this fraction are not shipped: their types must be wrong."""

Sizes = dict[str, Any]


def sizes() -> dict[str, Sizes]:
    """Return the contents of sizes.toml."""
    return tomllib.loads((Path(__file__).with_name("sizes.toml")).read_text(encoding="utf-8"))


def base(name: str) -> ModelHeader:
    """Return a model's header in F16. Raises ValueError if its number of weights is wrong."""
    header = f16(name, *SHAPES[name])
    if header.n_params != PARAMETERS[name]:
        raise ValueError(f"{name} would have {header.n_params} weights instead of {PARAMETERS[name]}.")
    return header


def headers(entry: CatalogueEntry, known: Sizes) -> list[ModelHeader]:
    """Return a model's headers at the quantizations in its repository whose computed sizes are right."""
    source = base(entry.name)
    found = []
    for quant in LADDER:
        if quant in entry.labels and quant in known.get("ships", LADDER):
            made = quantized(source, quant, imatrix=known.get("imatrix", False))
            made = fitted(made, known.get("fitted", {}).get(quant, {}))
            size = made.file_size + known["header"]
            published = known.get(quant, size)
            if abs(size / published - 1) <= MAX_OFF:
                found.append(replace(made, file_size=published))
    return found


def fitted(header: ModelHeader, patterns: dict[str, str]) -> ModelHeader:
    """Return the header after changing the types of quantized tensors whose names match a pattern."""
    tensors = list(header.tensors)
    for pattern, kind in patterns.items():
        for i, one in enumerate(tensors):
            if one.type is not GgmlType.F32 and re.search(pattern, one.name):
                tensors[i] = tensor(one.name, one.shape, GgmlType[kind])
    return placed(replace(header, tensors=tuple(tensors)))


def everything() -> bytes:
    """Return the contents of skeletons.bin."""
    known = sizes()
    entries = [entry for entry in read_catalogue(ROOT / "models.toml") if entry.repo is not None]
    return pack_all([(entry, headers(entry, known[entry.name])) for entry in entries])


def main() -> None:
    """Write the file, or check it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    made = everything()
    if not parser.parse_args().check:
        TARGET.write_bytes(made)
        print(f"{TARGET.relative_to(ROOT)}: {len(made)} bytes")
    elif made != TARGET.read_bytes():
        sys.exit(f"{TARGET.relative_to(ROOT)} is not what this makes: run it without --check.")


if __name__ == "__main__":
    main()
