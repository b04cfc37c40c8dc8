"""Adapters on this machine: GGUF files stored among the models, and folders saved by PEFT."""

from __future__ import annotations

import difflib
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgechat.base.errors import ModelFileError, NotAnAdapter
from edgechat.base.text import one_line
from edgechat.models.adapters.reading import (
    CONFIG,
    KIND,
    MAX_BYTES,
    WEIGHTS,
    parse_scaled,
    tensor_pairs,
)
from edgechat.models.local.files import ModelPartFile, Skipped, file_at
from edgechat.models.local.inventory import Inventory, LocalModel, inventory
from edgechat.models.local.locations import Place
from edgechat.models.local.resolve import local_models
from edgechat.models.local.stores import FoundModel, peft_folders
from edgechat.native.params import AdapterUse

_START = 1 << 16
"""Number of bytes to read from the start of a file. Its type is among the first metadata entries."""
_STATED = b"general.type" + struct.pack("<IQ", 8, len(KIND)) + KIND.encode()


@dataclass(frozen=True, slots=True)
class AdapterDetails:
    """Details from an adapter's files. Fields missing from the files are empty."""

    base: str = ""
    """Name of the model that the adapter was trained for."""
    architecture: str = ""
    rank: int = 0
    damage: str = ""
    """Why the adapter cannot be read, as a sentence."""
    obstacle: str = ""
    """Why the adapter cannot be converted to GGUF, phrased as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class LocalAdapter(LocalModel):
    """An adapter on this machine: a GGUF file, or a folder saved by PEFT.

    It can be listed, verified and removed like a model.
    """

    @property
    def other_names(self) -> tuple[str, ...]:
        """The adapter's other names."""
        names = dict.fromkeys(filter(None, (self.full_name, self.found.repo)))
        return tuple(name for name in names if name != self.name)

    @property
    def names(self) -> set[str]:
        """All of the adapter's names, in lowercase."""
        return {name.casefold() for name in (self.name, *self.other_names)}

    def details(self) -> AdapterDetails:
        """Read the details from the adapter's files."""
        try:
            if self.path.is_dir():
                from edgechat.models.adapters.peft import read_config  # 5 ms, so imported only on demand

                config = read_config(self.path)
                base = config.base_model_name_or_path or ""
                return AdapterDetails(base, "", config.r, obstacle=config.obstacle)
            from edgechat.models.formats.gguf import read_header

            header = read_header(self.path)
        except (ModelFileError, NotAnAdapter) as error:
            return AdapterDetails(damage=error.message)
        bases = map(header.text, ("general.base_model.0.repo_url", "general.base_model.0.name"))
        base = next(filter(None, bases), "").removeprefix("https://huggingface.co/")
        ranks = [tensor.shape[0] for tensor in header.tensors if tensor.name.endswith(".lora_b")]
        return AdapterDetails(base, header.text("general.architecture") or "", max(ranks, default=0))


def states_adapter(path: Path) -> bool:
    """Return whether a GGUF file declares itself to be an adapter, without parsing the whole header."""
    try:
        with path.open("rb") as file:
            start = file.read(_START)
    except OSError:
        return False
    return start.startswith(b"GGUF") and _STATED in start


def local_adapters(known: Inventory | None = None) -> list[LocalAdapter]:
    """Return the adapters in all model locations, sorted by name.

    known: the inventory, if it has already been read. Raises SettingsError.
    """
    found = [
        LocalAdapter(one.name, one.full_name, one.found, one.entry, one.quant)
        for one in (known or inventory()).models
        if one.found.format == "gguf" and one.size <= MAX_BYTES and states_adapter(one.path)
    ]
    found += (LocalAdapter(one.label, one.label, one) for one in peft_folders(Skipped()))
    return sorted(found, key=lambda one: one.name.casefold())


def find_adapter(name: str) -> LocalAdapter:
    """Return the adapter that a name or path refers to. Raises NotAnAdapter."""
    path = Path(os.path.abspath(os.path.expanduser(name)))
    if name.strip() and os.path.exists(path):  # False for impossible file names
        return _adapter_at(path)
    known = local_adapters()
    wanted = name.strip().casefold().removesuffix(".gguf")
    for adapter in known:
        if wanted in adapter.names:
            return adapter
    before, colon, scale = name.strip().rpartition(":")
    if colon and any(before.casefold().removesuffix(".gguf") in adapter.names for adapter in known):
        raise NotAnAdapter(
            f"{one_line(scale, 40)!r} is not a valid scale for an adapter.",
            hint=f"Write a number after the colon: {one_line(before, 80)}:0.5",
        )
    near = difflib.get_close_matches(wanted, [one.name for one in known], n=2)
    raise NotAnAdapter(
        f"There is no adapter {one_line(name, 80)!r}: no such file or folder, and none in `edgechat list`.",
        hint=f"Did you mean {' or '.join(near)}?" if near else "To download one: edgechat pull OWNER/NAME",
    )


def known_adapter(name: str) -> LocalAdapter | None:
    """Return the adapter that a name or path refers to, with the location in which it is stored.

    Returns None if there is no such adapter, or if a model has that name.
    """
    try:
        found = find_adapter(name)
    except NotAnAdapter:
        return None
    if found.place is Place.ELSEWHERE:
        found = next((one for one in local_adapters() if one.path == found.path), found)
    is_one = (found.path / CONFIG).is_file() if found.path.is_dir() else states_adapter(found.path)
    is_model = any(model.path != found.path for model in local_models(name))
    return found if is_one and not is_model else None


def check_adapter(path: Path) -> None:
    """Check an adapter's files without needing its model. Raises NotAnAdapter, ModelFileError."""
    if path.is_dir():
        from edgechat.models.adapters.peft import read_weights

        read_weights(path)
    else:
        from edgechat.models.formats.gguf import read_header

        tensor_pairs(read_header(path))


def adapter_uses(texts: Sequence[str]) -> tuple[AdapterUse, ...]:
    """Parse adapters given as FILE or NAME:SCALE. Raises NotAnAdapter."""
    return tuple(_uses(texts))


def _adapter_at(path: Path) -> LocalAdapter:
    """Return the adapter at an existing path, without checking that it really is one."""
    parts = [path / name for name in (CONFIG, WEIGHTS)] if path.is_dir() else [path]
    files = tuple(file_at(part) or ModelPartFile(part, 0, 0) for part in parts)
    found = FoundModel(Place.ELSEWHERE, str(path), files, format="peft" if path.is_dir() else "gguf")
    return LocalAdapter(path.name.removesuffix(".gguf"), str(path), found)


def _uses(texts: Sequence[str]) -> Iterator[AdapterUse]:
    for text in texts:
        name, scale = parse_scaled(text)
        yield AdapterUse(str(find_adapter(name).path), scale)
