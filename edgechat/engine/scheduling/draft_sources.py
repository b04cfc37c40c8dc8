"""What drafts: a small model, layers that read the model's own states, or the n-grams of the conversation."""

from __future__ import annotations

from typing import Literal

Source = Literal["model", "mtp", "eagle3", "ngram"]

MOST: dict[Source, int] = {"model": 8, "mtp": 8, "eagle3": 8, "ngram": 15}
"""Tokens of the longest draft: copied text may match for long, what computes its draft diverges sooner."""
