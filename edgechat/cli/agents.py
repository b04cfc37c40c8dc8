"""Coding agents, and how to point each of them at a server: variables, arguments and temporary files.

The agents' own configuration files are left unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PATIENCE_MS = 3_600_000
"""Timeout for agents, in milliseconds. On a CPU, processing some agents' first prompt takes minutes."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """What an agent needs to know about a server."""

    url: str
    """Base URL, without /v1."""
    key: str
    model: str
    context: int
    """Context length, in tokens."""
    sees: bool = False
    """Whether the model accepts images. Many agents send them only to models declared to accept them."""

    @property
    def modalities(self) -> list[str]:
        """The types of input that the model accepts."""
        return ["text", "image"] if self.sees else ["text"]

    @property
    def answer_tokens(self) -> int:
        """Maximum length of an answer, in tokens."""
        return min(8192, self.context // 4)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The command-line arguments, environment variables and files for an agent."""

    arguments: tuple[str, ...] = ()
    """Arguments that come before the user's."""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    """Environment variables to set, or to remove if None."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Contents of files to create in the temporary folder, keyed by name."""


@dataclass(frozen=True, slots=True)
class Agent:
    """A coding agent that edgechat can set up."""

    name: str
    install: str
    settings: Callable[[ServerAddress, Path], AgentSettings]
    """Function called with the server and the path of the temporary folder."""


def any_program(address: ServerAddress, _: Path) -> AgentSettings:
    """Return the environment variables that most OpenAI, Anthropic and Ollama clients read."""
    others = {
        "ANTHROPIC_BASE_URL": address.url,
        "ANTHROPIC_AUTH_TOKEN": address.key,
        "ANTHROPIC_MODEL": address.model,
        "OLLAMA_HOST": address.url,
    }
    return AgentSettings(environment=_for_openai(address) | others)


def _for_openai(address: ServerAddress) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": f"{address.url}/v1",
        "OPENAI_API_KEY": address.key,
        "OPENAI_MODEL": address.model,
    }


def _codex(address: ServerAddress, _: Path) -> AgentSettings:
    # Codex warns that it has no metadata for the model. The user could supply some (model_catalog_json), but
    # that has to include a system prompt, which would replace Codex's own.
    provider = {
        "name": "edgechat",
        "base_url": f"{address.url}/v1",
        "env_key": "EDGECHAT_API_KEY",
        "wire_api": "responses",
        "stream_idle_timeout_ms": _PATIENCE_MS,
    }
    table = ", ".join(f"{name} = {json.dumps(value)}" for name, value in provider.items())
    values = (
        'model_provider="edgechat"',
        f"model_providers.edgechat={{{table}}}",
        f"model={json.dumps(address.model)}",
        f"model_context_window={address.context}",
    )
    arguments = tuple(word for value in values for word in ("-c", value))
    return AgentSettings(arguments, {"EDGECHAT_API_KEY": address.key})


def _claude(address: ServerAddress, _: Path) -> AgentSettings:
    models = [f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("OPUS", "SONNET", "HAIKU")]
    models += ["ANTHROPIC_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"]
    environment: dict[str, str | None] = {
        "ANTHROPIC_BASE_URL": address.url,
        "ANTHROPIC_AUTH_TOKEN": address.key,
        "ANTHROPIC_API_KEY": None,
        **dict.fromkeys(models, address.model),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(address.answer_tokens),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # The header is different in each request, so nothing after it in the prompt would ever be cached.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "API_TIMEOUT_MS": str(_PATIENCE_MS),
    }
    return AgentSettings(environment=environment)


def _opencode(address: ServerAddress, _: Path) -> AgentSettings:
    model = {
        "name": address.model,
        "limit": {"context": address.context, "output": address.answer_tokens},
        "attachment": address.sees,
        "modalities": {"input": address.modalities, "output": ["text"]},
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "edgechat",
        "options": {"baseURL": f"{address.url}/v1", "apiKey": "{env:EDGECHAT_API_KEY}"},
        "models": {address.model: model},
    }
    name = f"edgechat/{address.model}"
    config = {"model": name, "small_model": name, "provider": {"edgechat": provider}}
    return AgentSettings(
        environment={"OPENCODE_CONFIG_CONTENT": json.dumps(config), "EDGECHAT_API_KEY": address.key}
    )


def _aider(address: ServerAddress, folder: Path) -> AgentSettings:
    name = f"openai/{address.model}"
    known = {
        name: {
            "max_input_tokens": address.context,
            "max_output_tokens": address.answer_tokens,
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
            "litellm_provider": "openai",
            "mode": "chat",
            "supports_vision": address.sees,
        }
    }
    metadata = "models.json"
    return AgentSettings(
        ("--model", name, "--model-metadata-file", str(folder / metadata), "--no-show-model-warnings"),
        {"OPENAI_API_BASE": f"{address.url}/v1", "OPENAI_API_KEY": address.key},
        {metadata: json.dumps(known)},
    )


def _crush(address: ServerAddress, folder: Path) -> AgentSettings:
    model = {
        "id": address.model,
        "name": address.model,
        "context_window": address.context,
        "default_max_tokens": address.answer_tokens,
        "supports_attachments": address.sees,
    }
    provider = {
        "name": "edgechat",
        "type": "openai-compat",
        "base_url": f"{address.url}/v1",
        "api_key": "$EDGECHAT_API_KEY",
        "models": [model],
    }
    chosen = {"model": address.model, "provider": "edgechat"}
    config = {"providers": {"edgechat": provider}, "models": {"large": chosen, "small": chosen}}
    return AgentSettings(
        environment={"CRUSH_GLOBAL_CONFIG": str(folder), "EDGECHAT_API_KEY": address.key},
        files={"crush.json": json.dumps(config)},
    )


def _goose(address: ServerAddress, _: Path) -> AgentSettings:
    return AgentSettings(
        environment={
            "GOOSE_PROVIDER": "openai",
            "GOOSE_MODEL": address.model,
            "GOOSE_CONTEXT_LIMIT": str(address.context),
            "OPENAI_HOST": address.url,
            "OPENAI_API_KEY": address.key,
        }
    )


def _pi(address: ServerAddress, folder: Path) -> AgentSettings:
    model = {
        "id": address.model,
        "contextWindow": address.context,
        "maxTokens": address.answer_tokens,
        "input": address.modalities,
    }
    provider: dict[str, Any] = {
        "baseUrl": f"{address.url}/v1",
        "api": "openai-completions",
        "apiKey": "EDGECHAT_API_KEY",
        "models": [model],
    }
    return AgentSettings(
        ("--provider", "edgechat", "--model", address.model),
        {"PI_CODING_AGENT_DIR": str(folder), "EDGECHAT_API_KEY": address.key},
        {"models.json": json.dumps({"providers": {"edgechat": provider}})},
    )


def _qwen(address: ServerAddress, _: Path) -> AgentSettings:
    return AgentSettings(environment=_for_openai(address))


AGENTS: dict[str, Agent] = {
    agent.name: agent
    for agent in (
        Agent("codex", "npm install -g @openai/codex", _codex),
        Agent("claude", "npm install -g @anthropic-ai/claude-code", _claude),
        Agent("opencode", "npm install -g opencode-ai", _opencode),
        Agent("aider", "pip install aider-chat", _aider),
        Agent("crush", "npm install -g @charmland/crush", _crush),
        Agent("goose", "see https://block.github.io/goose", _goose),
        Agent("pi", "npm install -g @mariozechner/pi-coding-agent", _pi),
        Agent("qwen", "npm install -g @qwen-code/qwen-code", _qwen),
    )
}
