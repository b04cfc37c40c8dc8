"""Finds the Rust crates compiled into a distribution's library, using the SBOM in its wheel."""

from __future__ import annotations

import json
from importlib import metadata


def crates_in(one: metadata.Distribution) -> list[str]:
    """Return "name version: licence" for each crate, sorted; an empty list if the wheel has no SBOM."""
    found: set[str] = set()
    for path in one.files or ():
        if path.parent.name == "sboms" and path.name.endswith(".cyclonedx.json"):
            for part in json.loads(path.read_text(encoding="utf-8"))["components"]:
                # Excluded components were only needed at build time and are not in the library.
                if part["purl"].startswith("pkg:cargo/") and part.get("scope") != "excluded":
                    found.add(f"{part['name']} {part['version']}: {_licence(part.get('licenses', ()))}")
    return sorted(found)


def _licence(said: list[dict[str, object]]) -> str:
    """Return the SPDX expression, or the names of the licences if there is no expression."""
    named: list[str] = []
    for one in said:
        licence = one.get("license")
        of_one = licence.get("id") or licence.get("name") if isinstance(licence, dict) else None
        named.append(str(one.get("expression") or of_one))
    return ", ".join(named) or "its sources say it"
