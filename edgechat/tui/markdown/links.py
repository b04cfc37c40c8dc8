"""Where links lead: which of them a terminal is told (OSC 8), and which show it themselves."""

from __future__ import annotations

import re

_LONGEST = 2000
"""Terminals have limits of about this (2083 in VTE)."""
_CLICKABLE = re.compile(r"(?:https?://|mailto:)[!-~]+", re.IGNORECASE)
_SCHEME = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)


def clickable(target: str) -> bool:
    """Return whether a terminal may open it: an address of the web or of mail, without odd characters."""
    return len(target) <= _LONGEST and _CLICKABLE.fullmatch(target) is not None


def shows(text: str, target: str) -> bool:
    """Return whether the text of a link is its target, the scheme aside."""
    return _bare(text) == _bare(target)


def _bare(address: str) -> str:
    return _SCHEME.sub("", address, count=1).rstrip("/")
