"""Write edgechat/base/data/skeletons.bin: the header of every model of the catalogue, in every quant it has.

$ python packaging/catalogue/build.py [--check]

--check writes nothing and fails where the shipped file is another. To add a model: its numbers in shapes.py,
what is known of its files in sizes.toml, its entry in models.toml, and this again.
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
"""A mixture whose size is further than this from the published one is another mixture, and not shipped."""

Sizes = dict[str, Any]


def sizes() -> dict[str, Sizes]:
    """Return sizes.toml."""
    return tomllib.loads((Path(__file__).with_name("sizes.toml")).read_text(encoding="utf-8"))


def base(name: str) -> ModelHeader:
    """Return the header of a model in F16. Raises ValueError where its table is not the model's."""
    header = f16(name, *SHAPES[name])
    if header.n_params != PARAMETERS[name]:
        raise ValueError(f"{name} would have {header.n_params} weights instead of {PARAMETERS[name]}.")
    return header


def headers(entry: CatalogueEntry, known: Sizes) -> list[ModelHeader]:
    """Return the headers of one model in the quantizations that its repository has and that are known."""
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
    """Return the header with other types where a pattern finds a quantized tensor's name."""
    tensors = list(header.tensors)
    for pattern, kind in patterns.items():
        for i, one in enumerate(tensors):
            if one.type is not GgmlType.F32 and re.search(pattern, one.name):
                tensors[i] = tensor(one.name, one.shape, GgmlType[kind])
    return placed(replace(header, tensors=tuple(tensors)))


def everything() -> bytes:
    """Return what skeletons.bin holds."""
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
