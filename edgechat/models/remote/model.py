"""A model on a remote engine, represented as plain data."""

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
"""Names of the server kinds, as shown to users."""


class HostedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model on a server, as described by the server."""

    server: str
    """The server's name, as shown to users."""
    id: str
    kind: RemoteKind
    url: str
    context: int = 0
    """Context length in tokens, or 0 if the server does not report it."""
    n_params: int = 0
    sees: bool = False
    hears: bool = False
    chats: bool = True
    """Whether it can do more than produce embeddings."""
    can_switch_thinking: bool = False
    has_tools: bool = True
    """Whether the model supports tools natively. This is assumed if the server does not report it."""

    is_started: bool = False
    """Whether edgechat itself starts the server, in which case `server` is the program's name."""

    @property
    def name(self) -> str:
        """The model's name, as shown to users."""
        return f"{self.server}{':' if self.is_started else '/'}{self.id}"


def split_remote(model: str, remotes: Collection[str]) -> tuple[str, str] | None:
    """Split NAME/MODEL into server and model. Returns None for a file, or if NAME is not a remote."""
    name, _, id = model.partition("/")
    return (name, id) if id and name in remotes and not os.path.isfile(model) else None


def root_of(url: str) -> str:
    """Return a server's URL without the '/v1' used by OpenAI's protocol."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")
