"""The extension `lora` of requests: which LoRA adapters an answer is computed with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from edgechat.base.errors import NotAnAdapter
from edgechat.base.text import one_line
from edgechat.models.adapters.local import LocalAdapter, local_adapters
from edgechat.models.adapters.reading import MAX_SCALE, AdapterUse
from edgechat.planner.plan import LoadPlan

MOST = 4
_LONGEST = 512


class LoraBody(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter, by its name or its number."""

    name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=_LONGEST)] | None,
        Meta(description="A name of `--lora` or of `edgechat list`."),
    ] = None
    id: Annotated[
        Annotated[int, Meta(ge=0, le=1024)] | None,
        Meta(description="The place among the adapters of `--lora`, from 0."),
    ] = None
    scale: Annotated[
        float, Meta(ge=-MAX_SCALE, le=MAX_SCALE, description="1 applies it as it was trained; 0: not at all.")
    ] = 1.0


Lora = Annotated[
    Annotated[list[LoraBody], Meta(max_length=MOST)] | None,
    Meta(
        description="Extension: the LoRA adapters to apply, all of them; []: none. If omitted: those that "
        "`model` names behind a +, else those that the server was started with."
    ),
]


def requested_adapters(
    named: Sequence[str], lora: Sequence[LoraBody] | None, plan: LoadPlan
) -> tuple[AdapterUse, ...]:
    """Return what a request is computed with. Reads the disk. Raises NotAnAdapter.

    named: those in the model's name, if there is no `lora`. A client names no paths.
    """
    if len(named) > MOST:
        raise NotAnAdapter(f"The model's name has {len(named)} adapters; the limit is {MOST}.")
    if lora is None:
        scales = {adapter.name.casefold(): adapter.scale for adapter in plan.adapters}
        lora = [LoraBody(name=name, scale=scales.get(name.casefold(), 1.0)) for name in named]
    return tuple(_uses(lora, plan))


def _uses(wanted: Sequence[LoraBody], plan: LoadPlan) -> Iterator[AdapterUse]:
    started_with = {adapter.name.casefold(): adapter.path for adapter in plan.adapters}
    here: list[LocalAdapter] | None = None
    for one in wanted:
        if (one.name is None) == (one.id is None):
            raise NotAnAdapter("Each adapter in lora needs either a name or an id.")
        if one.id is not None:
            if one.id >= len(plan.adapters):
                raise NotAnAdapter(f"There is no adapter {one.id}: the server has {len(plan.adapters)}.")
            yield AdapterUse(plan.adapters[one.id].path, one.scale)
            continue
        wanted_name = (one.name or "").strip().casefold()
        path = started_with.get(wanted_name)
        if path is None:
            here = local_adapters() if here is None else here
            found = (adapter for adapter in here if wanted_name in adapter.names)
            path = next((str(adapter.path) for adapter in found), None)
        if path is None:
            raise NotAnAdapter(
                f"There is no adapter {one_line(one.name or '', 80)!r} on this machine.",
                hint="`edgechat list` lists them; --lora adds others.",
            )
        yield AdapterUse(path, one.scale)
