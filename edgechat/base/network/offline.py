"""What keeps edgechat off the network: an environment variable, or --offline, which sets one."""

from __future__ import annotations

import os

OFFLINE, OFFLINE_OPTION = "EDGECHAT_OFFLINE", "--offline"
"""edgechat's variable, and the value that the option gives it, for child processes too."""
_VARIABLES = (OFFLINE, "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_TRUE = frozenset({"1", "ON", "YES", "TRUE"})


def offline_by() -> str | None:
    """Return what switches the network off, the option or the name of a variable, or None."""
    if os.environ.get(OFFLINE) == OFFLINE_OPTION:
        return OFFLINE_OPTION
    return next((name for name in _VARIABLES if is_true(name)), None)


def is_true(variable: str) -> bool:
    """Return whether an environment variable is true, as huggingface_hub reads it."""
    return os.environ.get(variable, "").strip().upper() in _TRUE
