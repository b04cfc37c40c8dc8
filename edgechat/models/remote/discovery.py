"""Server discovery: what kind of server a remote is, which models it has, and what each model can do.

Most servers identify themselves in their list of models (`owned_by`). The others are recognized by an
endpoint that no other server has.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from edgechat.base.errors import EdgechatError, ModelNotFound, RemoteUnreachable
from edgechat.base.text import one_line
from edgechat.models.remote.client import RemoteClient
from edgechat.models.remote.model import HostedModel
from edgechat.settings import RemoteKind

MOST_MODELS = 2000
UNNAMED = "unknown"
"""Name that SGLang's router uses for models on other engines, because it does not know their names."""
_MOST_ID = 256
_MOST_COUNT = 2**40
_OWNERS: Mapping[str, RemoteKind] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama-server",
    "edgechat": "edgechat",
    "organization_owner": "lmstudio",
}
_ROUTER = "local"
"""Value of `owned_by` in the list of models from SGLang's router."""
_SIGNS: tuple[tuple[RemoteKind, str, str], ...] = (
    ("lmstudio", "/api/v0/models", "data"),
    ("tgi", "/info", "max_total_tokens"),
    ("llama-server", "/props", "default_generation_settings"),
    ("ollama", "/api/version", "version"),
)
"""An endpoint that only one kind of server has, and a field in its response. Ollama's comes last, because
other servers imitate it.
"""


async def models_of(client: RemoteClient) -> tuple[RemoteKind, list[HostedModel]]:
    """Return the kind of server and its models. Raises EdgechatError."""
    listed = await client.get("/v1/models")
    entries = _value(listed, "data")
    if not isinstance(listed, dict) or not isinstance(entries, list | None):
        raise RemoteUnreachable(
            f"{client.name} has no list of models: it is not a server that edgechat can use.",
            hint=f"Its address: {client.root}",
        )
    entries = [entry for entry in (entries or [])[:MOST_MODELS] if _is_model(entry)]
    if _owner(entries) == _ROUTER:
        with contextlib.suppress(ModelNotFound):  # not a router after all
            await client.get("/readiness")  # the router has a list even if it has no engine
    kind = client.server.kind or _OWNERS.get(_owner(entries)) or await _probed(client)
    details: Mapping[str, Mapping[str, Any]] = {}
    if kind == "lmstudio":
        details = {entry["id"]: entry for entry in await _entries(client, "/api/v0/models")}
    return kind, [_model(client, kind, {**entry, **details.get(entry["id"], {})}) for entry in entries]


async def described(client: RemoteClient, model: str) -> HostedModel:
    """Return one of a server's models, including all details that the server provides.

    Raises EdgechatError.
    """
    if client.server.kind == "transformers":  # it lists the hub's cache, but runs any model on request
        return _model(client, "transformers", {"id": model})
    kind, models = await models_of(client)
    found = next((one for one in models if one.id == model), None)
    if [one.id for one in models] == [UNNAMED]:
        return msgspec.structs.replace(models[0], id=model)
    if found is None and kind == "ollama":  # the tag is often omitted
        found = next((one for one in models if one.id == f"{model}:latest"), None)
    if found is None:
        near = difflib.get_close_matches(model, [one.id for one in models], n=1, cutoff=0.5)
        names = ", ".join(one.id for one in models[:5]) or "none"
        more = f" and {len(models) - 5} more" if len(models) > 5 else ""
        hint = f"Did you mean {client.name}/{near[0]}?" if near else f"Its models: {names}{more}"
        raise ModelNotFound(f"{client.name} has no model {one_line(model, 100)}.", hint=hint)
    try:
        match kind:
            case "llama-server":
                return _of_llama_server(found, await client.get("/props"))
            case "ollama":
                loaded = await _entries(client, "/api/ps", "models")
                return _of_ollama(found, await client.post("/api/show", {"model": found.id}), loaded)
            case "tgi":
                told = await client.get("/info")
                return msgspec.structs.replace(found, context=_count(told, "max_total_tokens"))
    except EdgechatError:  # chats work without these details, which routers and older versions lack
        pass
    return found


def _is_model(entry: Any) -> bool:
    id = entry.get("id") if isinstance(entry, dict) else None
    return isinstance(id, str) and 0 < len(id) <= _MOST_ID and id.isprintable()


def _owner(entries: Sequence[Mapping[str, Any]]) -> str:
    owner = entries[0].get("owned_by") if entries else None
    return owner if isinstance(owner, str) else ""


async def _probed(client: RemoteClient) -> RemoteKind:
    async def has(path: str, field: str) -> bool:
        try:
            told = await client.get(path)
        except EdgechatError:
            return False
        return isinstance(told, dict) and field in told

    found = await asyncio.gather(*(has(path, field) for _, path, field in _SIGNS))
    return next((kind for (kind, _, _), is_it in zip(_SIGNS, found, strict=True) if is_it), "openai")


async def _entries(client: RemoteClient, path: str, field: str = "data") -> list[dict[str, Any]]:
    """Return the models listed by another endpoint, or [] if the request fails."""
    try:
        told = await client.get(path)
    except EdgechatError:
        return []
    found = _value(told, field)
    if not isinstance(found, list):
        return []
    named = [{"id": entry.get("name"), **entry} for entry in found[:MOST_MODELS] if isinstance(entry, dict)]
    return [entry for entry in named if _is_model(entry)]


def _model(client: RemoteClient, kind: RemoteKind, entry: Mapping[str, Any]) -> HostedModel:
    """Return the model described by a list entry, which can have the fields of any kind of server."""
    meta, architecture = _table(entry, "meta"), _table(entry, "architecture")
    contexts = [
        _count(meta, "n_ctx"),
        *(_count(entry, name) for name in ("max_model_len", "context", "loaded_context_length")),
        *(_count(entry, name) for name in ("context_length", "context_window", "max_context_length")),
    ]
    senses = architecture.get("input_modalities")
    senses = senses if isinstance(senses, list) else []
    kinds = (entry.get("kind"), entry.get("type"))
    return HostedModel(
        server=client.name,
        id=entry["id"],
        kind=kind,
        url=client.root,
        context=next(filter(None, contexts), 0),
        n_params=_count(meta, "n_params"),
        sees="image" in senses or entry.get("type") == "vlm",
        hears="audio" in senses,
        chats=not any(one in ("embedding", "embeddings") for one in kinds),
        can_switch_thinking=kind in ("vllm", "sglang", "edgechat", "transformers"),
    )


def _of_llama_server(model: HostedModel, props: Any) -> HostedModel:
    template, senses = _value(props, "chat_template"), _table(props, "modalities")
    template = template if isinstance(template, str) else ""
    settings = _table(props, "default_generation_settings")
    return msgspec.structs.replace(
        model,
        context=_count(settings, "n_ctx") or model.context,
        sees=senses.get("vision") is True,
        hears=senses.get("audio") is True,
        can_switch_thinking="enable_thinking" in template,
    )


def _of_ollama(model: HostedModel, shown: Any, loaded: Sequence[Mapping[str, Any]]) -> HostedModel:
    able, details = _value(shown, "capabilities"), _table(shown, "model_info")
    able = able if isinstance(able, list) else ["completion", "tools"]
    # Ignore the context used in training: Ollama chooses one at load time, to fit into free memory.
    contexts = [_count(entry, "context_length") for entry in loaded if entry["id"] == model.id]
    return msgspec.structs.replace(
        model,
        context=next(iter(contexts), 0),
        n_params=_count(details, "general.parameter_count"),
        sees="vision" in able,
        chats="completion" in able,
        can_switch_thinking="thinking" in able,
        has_tools="tools" in able,
    )


def _value(told: Any, name: str) -> Any:
    return told.get(name) if isinstance(told, dict) else None


def _table(told: Any, name: str) -> Mapping[str, Any]:
    found = _value(told, name)
    return found if isinstance(found, dict) else {}


def _count(told: Any, name: str) -> int:
    value = _value(told, name)
    return value if type(value) is int and 0 < value <= _MOST_COUNT else 0
