"""A model of a remote engine, as plain values."""

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
"""What people call them."""


class HostedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of a server, as far as the server tells."""

    server: str
    """What users call the server."""
    id: str
    kind: RemoteKind
    url: str
    """Of the server."""
    context: int = 0
    """Tokens; 0: it does not tell."""
    n_params: int = 0
    sees: bool = False
    hears: bool = False
    chats: bool = True
    """Whether it is more than a maker of embeddings."""
    can_switch_thinking: bool = False
    has_tools: bool = True
    """Whether it knows tools by itself; servers of which that is not known are believed to."""

    is_started: bool = False
    """Whether edgechat starts the server: then this is a model of a program's, and `server` the program."""

    @property
    def name(self) -> str:
        """What users call it."""
        return f"{self.server}{':' if self.is_started else '/'}{self.id}"


def split_remote(model: str, remotes: Collection[str]) -> tuple[str, str] | None:
    """Return the server and the model of a name NAME/MODEL; None if it is a file, or NAME no remote."""
    name, _, id = model.partition("/")
    return (name, id) if id and name in remotes and not os.path.isfile(model) else None


def root_of(url: str) -> str:
    """Return a server's URL without what OpenAI's protocol adds to it."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")
