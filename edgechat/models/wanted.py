"""What is wanted of the hub: from a name that a person typed to the models of one repository."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgechat.errors import ModelNotFound, SettingsError
from edgechat.models.catalogue import CatalogueEntry
from edgechat.models.choices import ModelChoice
from edgechat.models.hub import RemoteModel
from edgechat.models.hubname import HubName, parse_model_name, valid_revision
from edgechat.models.library import entry_of, resolve
from edgechat.models.quants import canonical
from edgechat.text import one_line


@dataclass(frozen=True, slots=True)
class Wanted:
    """A repository, and what was said about which of its models."""

    hub: HubName
    entry: CatalogueEntry | None
    quant: str | None
    """The label that was asked for, in capitals."""

    @property
    def name(self) -> str:
        """What to call it."""
        return self.entry.name if self.entry else self.hub.repo

    @property
    def revision(self) -> str:
        """The branch, tag or commit."""
        return self.hub.revision or "main"


def wanted(name: str, quant: str | None = None, revision: str | None = None) -> Wanted:
    """Return what a name of the catalogue, an alias, owner/repo[:QUANT] or a hub address means.

    Raises ModelNotFound; SettingsError where two things were said that cannot both be.
    """
    entry = entry_of(name)
    hub = HubName(entry.repo) if entry and entry.repo else parse_model_name(name)
    if entry is not None and entry.repo is None:
        raise ModelNotFound(f"{entry.name} comes with edgechat: there is nothing to download.")
    if hub is None:
        return _local(name)
    if quant and hub.quant and canonical(quant) != canonical(hub.quant):
        raise SettingsError(f"{one_line(name)} names {hub.quant}, and --quant {one_line(quant)}: which one?")
    if revision and hub.revision and revision != hub.revision:
        raise SettingsError(f"{one_line(name)} names {hub.revision}, and --revision {one_line(revision)}.")
    if revision is not None and not valid_revision(revision):
        raise SettingsError(f"{one_line(revision)!r} can be no branch, tag or commit.")
    asked = quant or hub.quant
    hub = replace(hub, quant=None, revision=revision or hub.revision)
    return Wanted(hub, entry, canonical(asked) if asked else None)


def matching(want: Wanted, remote: RemoteModel) -> tuple[ModelChoice, ...]:
    """Return the models of the listing that are meant, at least one. Raises ModelNotFound."""
    found: Sequence[ModelChoice] = remote.choices
    if want.entry is not None:
        found = [one for one in found if _is_of(want.entry, one)]
        if not found:
            raise ModelNotFound(
                f"{remote.repo} holds no file like {want.entry.file} (any more).",
                hint=f"Choose another one of its files: edgechat plan {remote.repo}",
            )
    chosen = [one for one in found if want.quant in (None, canonical(one.quant or ""))]
    if not chosen:
        there = dict.fromkeys(one_line(one.quant or one.name, 80) for one in found)
        raise ModelNotFound(
            f"{remote.repo} has no {one_line(want.quant or '')}.",
            hint=f"It has: {', '.join(list(there)[:30])}.",
        )
    return tuple(chosen)


def _is_of(entry: CatalogueEntry, choice: ModelChoice) -> bool:
    """Say whether a model of the entry's repository is the entry's, and not one that lies beside it."""
    names = choice.file_names
    if entry.quant is None:
        return names == (entry.file,)
    return entry.quant_of(names[0]) is not None


def _local(name: str) -> Wanted:
    """Raise ModelNotFound for what is no name of the hub."""
    if Path(name).expanduser().exists():
        raise ModelNotFound(
            f"{one_line(name)} is on this machine already.", hint=f"Run it: edgechat run {one_line(name)}"
        )
    resolve(name)
    raise ModelNotFound(f"{one_line(name)} is no name of a model.", hint="Give one like owner/name.")
