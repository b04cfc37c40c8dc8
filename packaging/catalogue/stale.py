"""Report which entries in the catalogue need another look: `make catalogue`.

$ python packaging/catalogue/stale.py [--days N]

Reports entries that have not been checked within N days (60), and entries that differ from what the hub says
about their repository. If the hub cannot be reached, only the first check is done. Fails if it reports
anything. For each entry reported, compare it with its repository, see whether there is now a better model of
that size, and put the date into models.toml.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import TypeVar

import httpx2
from huggingface_hub import HfApi, ModelInfo
from huggingface_hub.errors import RepositoryNotFoundError

from edgechat.base.deadline import OutOfTime, run_within
from edgechat.base.network.offline import offline_by
from edgechat.base.text import one_line
from edgechat.engine.prompt.template import ChatTemplate
from edgechat.models.catalogue import CatalogueEntry, read_catalogue
from edgechat.models.hub.endpoint import endpoint

CATALOGUE = Path(__file__).parents[2] / "models.toml"
DAYS = 60
PATIENCE = 20.0
"""Seconds to wait for the hub to answer about one repository."""
UNREACHABLE = (httpx2.HTTPError, OSError, OutOfTime)

T = TypeVar("T")


def in_time(work: Callable[[], T]) -> T:
    """Return the result of `work`. Raises OutOfTime if it takes too long."""
    return run_within(PATIENCE, PATIENCE, lambda watch: work())


def stale(entry: CatalogueEntry, today: date, days: int) -> str | None:
    """Return when an entry was last checked if that was over `days` ago or never happened; otherwise None."""
    if entry.checked is None:
        return "was never looked at."
    age = (today - entry.checked).days
    return f"was looked at {age} days ago, on {entry.checked}." if age > days else None


def differences(entry: CatalogueEntry, api: HfApi) -> Iterator[str]:
    """Yield the differences between an entry and what the hub says. Raises an exception in UNREACHABLE."""
    assert entry.repo is not None
    try:
        info = in_time(lambda: api.model_info(entry.repo or "", timeout=PATIENCE))
    except RepositoryNotFoundError:
        yield f"has a repository that is not there: {entry.repo}."
        return
    yield from files(entry, [file.rfilename for file in info.siblings or ()])
    yield from facts(entry, info)
    for repo in entry.mlx.values():
        if not in_time(lambda repo=repo: api.repo_exists(repo)):
            yield f"has an MLX repository that is not there: {repo}."


def files(entry: CatalogueEntry, there: Sequence[str]) -> Iterator[str]:
    """Yield the quantizations that are missing or incomplete."""
    for quant in entry.quants:
        file = entry.file_for(quant)
        if file not in there:
            parts = re.compile(rf"(.*/)?{re.escape(file.removesuffix('.gguf'))}-\d+-of-\d+\.gguf")
            where = "only in parts" if any(map(parts.fullmatch, there)) else "not"
            yield f"names {file}, which is {where} in {entry.repo}."


def facts(entry: CatalogueEntry, info: ModelInfo) -> Iterator[str]:
    """Yield differences in licence, gating, context length and the thinking switch."""
    card, gguf = info.card_data or {}, info.gguf or {}
    licence = str(card.get("license_name") or card.get("license") or "")
    if licence and plain(licence) != plain(entry.licence):
        yield f"has the licence {entry.licence}, its repository {one_line(licence, 80)}."
    if info.gated is not None and bool(info.gated) != entry.gated:
        yield f"has gated = {str(entry.gated).lower()}, its repository {info.gated}."
    context = gguf.get("context_length")
    if context is not None and context != entry.context:
        yield f"has a context of {entry.context}, its files of {context}."
    template = gguf.get("chat_template")
    if template and ChatTemplate(template).can_switch_thinking != entry.thinking.startswith("default-"):
        has = "a" if ChatTemplate(template).can_switch_thinking else "no"
        yield f"has thinking = {entry.thinking}, its template {has} switch."


def plain(licence: str) -> str:
    """Return a licence's name in a normalized spelling: 'llama3.2'."""
    return re.sub(r"[^a-z0-9.]", "", licence.lower())


def main(arguments: Sequence[str] | None = None, *, today: date | None = None) -> None:
    """Print what needs to be done, one item per line. Exits with 1 if there is anything to do."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=DAYS)
    days = parser.parse_args(arguments).days
    entries = [entry for entry in read_catalogue(CATALOGUE) if entry.repo is not None]
    api = HfApi(endpoint=endpoint().url)
    why_not = f"{offline_by()} is set" if offline_by() else None
    found = asked = 0
    for entry in entries:
        said = [line for line in [stale(entry, today or date.today(), days)] if line]
        if why_not is None:
            try:
                said += differences(entry, api)
                asked += 1
            except UNREACHABLE as error:
                why_not = one_line(str(error) or type(error).__name__, 200)
        for line in said:
            print(f"{entry.name} {line}")
        found += len(said)
    if why_not is not None:
        print(f"The hub was asked about {asked} of {len(entries)} entries only: {why_not}.")
    print(f"{len(entries)} entries, {found} things to look at.")
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
