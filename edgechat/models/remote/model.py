"""A remote engine's model, as plain values."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

import msgspec

from edgechat.settings import RemoteKind

KINDS: Mapping[RemoteKind, str] = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llama-server": "llama-server",
    "ollama": "Ollama",
    "lmstudio": "LM Studio",
    "tgi": "TGI",
    "edgechat": "edgechat",
    "transformers": "Transformers",
    "openai": "OpenAI's protocol",
}
"""Their names for users."""


class HostedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model on a server, as described by the server."""

    server: str
    """The server's name for users."""
    id: str
    kind: RemoteKind
    url: str
    """The server's URL."""
    context: int = 0
    """Context length in tokens; 0 if the server does not state it."""
    n_params: int = 0
    sees: bool = False
    hears: bool = False
    chats: bool = True
    """Whether it does more than make embeddings."""
    can_switch_thinking: bool = False
    has_tools: bool = True
    """Whether it supports tools itself; assumed if the server does not say."""

    is_started: bool = False
    """Whether edgechat starts the server. If so, `server` is the name of the program."""

    @property
    def name(self) -> str:
        """The model's name for users."""
        return f"{self.server}{':' if self.is_started else '/'}{self.id}"


def split_remote(model: str, remotes: Collection[str]) -> tuple[str, str] | None:
    """Split NAME/MODEL into server and model; None if it is a file, or NAME is not a remote."""
    name, _, id = model.partition("/")
    return (name, id) if id and name in remotes and not os.path.isfile(model) else None


def root_of(url: str) -> str:
    """Return a server's URL without the '/v1' of OpenAI's protocol."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")
