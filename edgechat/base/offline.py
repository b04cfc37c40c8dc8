"""Who keeps edgechat off the network: a variable of the environment, or --offline, which travels in one."""

from __future__ import annotations

import os

OFFLINE, OFFLINE_OPTION = "EDGECHAT_OFFLINE", "--offline"
"""Our variable, and what it is set to by the option, for child processes too."""
_VARIABLES = (OFFLINE, "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_TRUE = frozenset({"1", "ON", "YES", "TRUE"})


def offline_by() -> str | None:
    """Return what switches the network off, the option or a variable by its name; None where nothing does."""
    if os.environ.get(OFFLINE) == OFFLINE_OPTION:
        return OFFLINE_OPTION
    return next((name for name in _VARIABLES if is_true(name)), None)


def is_true(variable: str) -> bool:
    """Say whether an environment variable says yes, as huggingface_hub reads it."""
    return os.environ.get(variable, "").strip().upper() in _TRUE
