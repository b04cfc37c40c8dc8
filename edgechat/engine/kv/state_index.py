"""Which saved state begins like a prompt: the tokens of all of a model's states, in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgechat.base.errors import EdgechatError
from edgechat.engine.kv import state_file, state_folder
from edgechat.engine.kv.state_file import StateRefused

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_Version = tuple[int, int, int]
"""What changes when a file is replaced."""


@dataclass(frozen=True, slots=True)
class FoundState:
    """A saved state that begins like a prompt."""

    chat: str
    shared: int
    """Tokens of the prompt that can be had from it."""
    tokens: int
    """Tokens of the state."""
    size: int
    """Bytes of the state."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownState:
    """The tokens of a state that can be read."""

    chat: str
    tokens: npt.NDArray[np.uint32]
    size: int
    cut: int = 0
    """Tokens up to its checkpoint; 0: it has none."""


class StateIndex:
    """The states in the folder, read again when their files change. Not for several threads."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[_Version, KnownState | None]] = {}

    def states(self, key: Callable[[], bytes], at_most: int) -> list[KnownState]:
        """Return the states of this key, of at most `at_most` bytes. Those that cannot be read are left out.

        key: asked only if there is a file. Raises what it raises.
        """
        try:
            files = state_folder.states()
        except EdgechatError:
            return []
        before, self._known = self._known, {}
        for chat, path, status in files:
            version = (status.st_ino, status.st_size, status.st_mtime_ns)
            known = before.get(path)
            if known is None or known[0] != version:
                known = version, _read(chat, Path(path), key(), at_most)
            self._known[path] = known
        return [known for _, known in self._known.values() if known is not None]


def best_of(states: Iterable[KnownState], tokens: Sequence[int], *, whole: bool) -> FoundState | None:
    """Return the state that shares the most tokens with a prompt, of several the smallest; None if none does.

    whole: only states of which all tokens are shared, or all up to the checkpoint.
    """
    import numpy as np

    prompt = np.array(tokens, np.uint32)
    found = [
        FoundState(state.chat, usable, len(state.tokens), state.size)
        for state in states
        if (usable := _usable(state, _shared(prompt, state.tokens), whole=whole))
    ]
    return max(found, key=lambda state: (state.shared, -state.size), default=None)


def _usable(state: KnownState, shared: int, *, whole: bool) -> int:
    if not whole or shared == len(state.tokens):
        return shared
    return state.cut if shared >= state.cut else 0


def _shared(left: npt.NDArray[np.uint32], right: npt.NDArray[np.uint32]) -> int:
    n = min(len(left), len(right))
    if not n or left[0] != right[0]:
        return 0
    unequal = left[:n] != right[:n]
    first = int(unequal.argmax())
    return first if unequal[first] else n


def _read(chat: str, path: Path, key: bytes, at_most: int) -> KnownState | None:
    try:
        with state_file.opened(path) as fd:
            head, tokens = state_file.read_tokens(fd, key, at_most=at_most)
    except (OSError, MemoryError, StateRefused):
        return None
    return KnownState(chat, tokens, head.size, head.cut_tokens)
