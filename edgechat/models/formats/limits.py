"""Limits on the contents of untrusted files, and the errors for files that break their format's rules."""

from __future__ import annotations

from edgechat.base.errors import ModelFileError

MAX_LAYERS = 512
"""As in llama.cpp."""
MAX_NUMBER = 2**31 - 1
"""No count of a model's shape is larger."""
MAX_ENDS = 64
"""Tokens that end a reply; more are not listed by a file that is sound."""
MAX_PARTS = 1000
"""Files of a split model."""

AGAIN = "Download it again: this copy is damaged or incomplete."


def show(text: str) -> str:
    """Return untrusted text so that it is harmless on a terminal."""
    return ascii(text if len(text) <= 60 else text[:57] + "...")


def unsound(name: str, why: str) -> ModelFileError:
    """Return the error for a file that breaks the format's rules."""
    return ModelFileError(f"{name} is not valid: {why}.", hint=AGAIN)
