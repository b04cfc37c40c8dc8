"""The kinds of models with heads, and their files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.kit.build import MODELS_DIR
from tests.kit.heads import deepseek2, eagle3, gemma4, glm4_moe, qwen35, step35
from tests.kit.heads.files import Model, save

MTP: dict[str, Callable[[float, int], Model]] = {
    "qwen35": qwen35.model,
    "glm4_moe": glm4_moe.model,
    "deepseek2": deepseek2.model,
    "step35": step35.model,
}
"""Kinds whose head is in the same file."""


class Pair(NamedTuple):
    """The files of a target and its drafter."""

    target: Path
    drafter: Path


def with_head(kind: str, *, eps: float = 0.05, seed: int = 1, folder: Path = MODELS_DIR) -> Path:
    """Return the path of a model with a head. eps: loudness of the noise unknown to the head."""
    return save(MTP[kind](eps, seed), folder)


def split_head(kind: str, *, eps: float = 0.05, seed: int = 1, folder: Path = MODELS_DIR) -> Pair:
    """Return the paths of the same model with its head in a separate file, `mtp-*.gguf`."""
    target, drafter = MTP[kind](eps, seed).split()
    return Pair(save(target, folder), save(drafter, folder))


def eagle3_pair(*, eps: float = 0.05, seed: int = 1, folder: Path = MODELS_DIR) -> Pair:
    """Return the paths of a qwen3 and the EAGLE-3 draft made for it."""
    return Pair(save(eagle3.target(eps, seed), folder), save(eagle3.draft(seed), folder))


def gemma4_pair(*, eps: float = 0.05, seed: int = 1, folder: Path = MODELS_DIR) -> Pair:
    """Return the paths of a gemma4 and the drafter that reads its KV cache."""
    return Pair(save(gemma4.target(eps, seed), folder), save(gemma4.drafter(seed), folder))
