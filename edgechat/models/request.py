"""Requests for models on the hub, parsed from names typed by users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgechat.base.errors import ModelNotFound, SettingsError
from edgechat.base.text import one_line
from edgechat.models.catalogue import CatalogueEntry
from edgechat.models.choices import ModelChoice
from edgechat.models.formats.header import Format
from edgechat.models.formats.quants import canonical, is_mlx_bits
from edgechat.models.hub.listing import RemoteModel, of_quant
from edgechat.models.hub.names import HubName, parse_model_name, valid_revision
from edgechat.models.local.resolve import entry_of, resolve


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request for models in a repository, optionally with one quantization or in one format."""

    hub: HubName
    entry: CatalogueEntry | None
    quant: str | None
    """Requested quantization, spelled as `quants.canonical` returns it."""
    format: Format | None = None
    """Requested format, or else the repository's. None means any format."""

    @property
    def name(self) -> str:
        """The model's name in the catalogue, or else the repository's name."""
        return self.entry.name if self.entry else self.hub.repo

    @property
    def revision(self) -> str:
        """The requested branch, tag or commit."""
        return self.hub.revision or "main"


def parse_request(
    name: str, quant: str | None = None, revision: str | None = None, format: Format | None = None
) -> ModelRequest:
    """Parse a catalogue name or alias, owner/repo[:QUANT], or a hub URL.

    format: for a model in the catalogue, 'mlx' selects its MLX repository, as does a quantization that exists
    only for MLX. For other repositories, only models in this format are requested. Raises ModelNotFound, and
    SettingsError if arguments contradict each other.
    """
    entry = entry_of(name)
    if entry is not None and entry.repo is None:
        raise ModelNotFound(f"{entry.name} is part of edgechat: there is nothing to download.")
    if entry is not None and (format == "mlx" or (quant and format is None and is_mlx_bits(quant))):
        hub: HubName | None = HubName(_mlx_repo(entry, quant))
        format = "mlx"
    else:
        hub = HubName(entry.repo) if entry and entry.repo else parse_model_name(name)
        format = "gguf" if entry else format
    if hub is None:
        return _raise_not_remote(name)
    if quant and hub.quant and canonical(quant) != canonical(hub.quant):
        raise SettingsError(f"{one_line(name)} asks for {hub.quant}, but --quant asks for {one_line(quant)}.")
    if revision and hub.revision and revision != hub.revision:
        raise SettingsError(
            f"{one_line(name)} asks for {hub.revision}, but --revision asks for {one_line(revision)}."
        )
    if revision is not None and not valid_revision(revision):
        raise SettingsError(f"{one_line(revision)!r} is not a valid branch, tag or commit.")
    # The default quantization is chosen for decoding speed, which only matters for chat models.
    usual = entry.quant if entry is not None and entry.kind != "chat" else None
    label = quant or hub.quant or usual
    hub = replace(hub, quant=None, revision=revision or hub.revision)
    return ModelRequest(hub, entry, canonical(label) if label else None, format)


def matching_choices(want: ModelRequest, remote: RemoteModel) -> tuple[ModelChoice, ...]:
    """Return the requested models in the listing. Raises ModelNotFound if there are none."""
    choices: Sequence[ModelChoice] = [
        choice for choice in remote.choices if want.format in (None, choice.format)
    ]
    if not choices:
        what = "MLX model" if want.format == "mlx" else "GGUF file"
        raise ModelNotFound(
            f"{remote.repo} contains no {what}.", hint="Omit --backend, or choose another repository."
        )
    if want.entry is not None and want.format == "mlx":
        return tuple(choices)  # the quantization determined the repository
    if want.entry is not None:
        choices = [choice for choice in choices if _belongs_to(want.entry, choice)]
        if not choices:
            raise ModelNotFound(
                f"{remote.repo} contains no file like {want.entry.file}. It may have been removed.",
                hint=f"To see its files: edgechat plan {remote.repo}",
            )
    return tuple(choices) if want.quant is None else of_quant(remote.repo, choices, want.quant)


def _mlx_repo(entry: CatalogueEntry, quant: str | None) -> str:
    """Return the MLX repository of a model in the catalogue. Raises ModelNotFound."""
    if not entry.mlx:
        raise ModelNotFound(
            f"The catalogue has no MLX repository for {entry.name}.",
            hint=f"Give a repository, or use the GGUF files: edgechat pull {entry.name} --backend llama.cpp",
        )
    repo = entry.mlx_repo(quant) if quant else next(iter(entry.mlx.values()))
    if repo is None:
        raise ModelNotFound(
            f"The catalogue has no {one_line(quant or '')} MLX repository for {entry.name}.",
            hint=f"It has: {', '.join(entry.mlx)}.",
        )
    return repo


def _belongs_to(entry: CatalogueEntry, choice: ModelChoice) -> bool:
    """Return whether a model in the entry's repository belongs to this entry."""
    names = choice.file_names
    if entry.quant is None:
        return names == (entry.file,)
    return entry.quant_of(names[0]) is not None


def _raise_not_remote(name: str) -> ModelRequest:
    """Raise ModelNotFound for a name that does not refer to anything on the hub."""
    if Path(name).expanduser().exists():
        raise ModelNotFound(
            f"{one_line(name)} is already on this machine.", hint=f"To run it: edgechat run {one_line(name)}"
        )
    resolve(name)  # explains what is wrong with an unknown name
    raise ModelNotFound(
        f"{one_line(name)} is already on this machine, but it is not in the catalogue.",
        hint=f"To run it: edgechat run {one_line(name)}. To download another model: edgechat pull OWNER/NAME",
    )
