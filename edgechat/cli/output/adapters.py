"""LoRA adapters in the output of `list`, `show` and `pull`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edgechat.base.text import flat, mebibytes
from edgechat.models.adapters.local import AdapterDetails, LocalAdapter
from edgechat.models.local.locations import Place

HEADINGS = ("ADAPTER", "RANK", "SIZE", "FOR", "WHERE")


def cells(adapter: LocalAdapter, details: AdapterDetails) -> tuple[str, ...]:
    """Return the row of an adapter, below HEADINGS."""
    rank = str(details.rank or "?")
    return (
        adapter.name,
        rank,
        mebibytes(adapter.size),
        "damaged" if details.damage else details.base or details.architecture or "?",
        adapter.place.value,
    )


def shown(adapter: LocalAdapter, details: AdapterDetails) -> Iterator[tuple[str, str]]:
    """Yield what is shown of an adapter."""
    names = ", or ".join(map(flat, (adapter.name, *adapter.other_names[:1])))
    name = adapter.path if adapter.place is Place.ELSEWHERE else adapter.name
    yield "", f"A LoRA adapter, to be applied to its model: edgechat run MODEL --lora {flat(str(name))}"
    yield "Name", names
    yield "For", flat(details.base) or "a model that it does not name"
    if details.architecture:
        yield "Architecture", flat(details.architecture)
    yield "Rank", str(details.rank or "unknown")
    if details.obstacle:
        yield "Format", flat(f"PEFT; cannot be converted to GGUF: {details.obstacle}")
    else:
        yield "Format", "PEFT; converted to GGUF at its first use" if adapter.path.is_dir() else "GGUF"
    yield "Where", flat(adapter.place.value)
    yield "Files", f"{mebibytes(adapter.size)}\n  {flat(str(adapter.path))}"
    if details.damage:
        yield "Damaged", flat(details.damage)


def as_object(adapter: LocalAdapter, details: AdapterDetails) -> dict[str, Any]:
    """Return an adapter for programs."""
    return {
        "kind": "adapter",
        "name": adapter.name,
        "format": adapter.model.found.format,
        "base": details.base or None,
        "architecture": details.architecture or None,
        "rank": details.rank or None,
        "size": adapter.size,
        "place": adapter.place.value,
        "path": str(adapter.path),
        "damage": details.damage or None,
    }
