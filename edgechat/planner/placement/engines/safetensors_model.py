"""A model of safetensors, as far as the formulas need it: its config.json and the size of its weights."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from edgechat.base.errors import ModelFileError, ModelNotFound
from edgechat.base.text import one_line
from edgechat.models.formats.mlx.config import (
    MAX_CONFIG,
    Config,
    bounded,
    folder_name,
    parse_config,
    parse_json,
)
from edgechat.models.formats.mlx.metadata import template_in
from edgechat.models.hub.client import ask_hub
from edgechat.models.hub.endpoint import Endpoint
from edgechat.models.hub.listing import list_repo
from edgechat.models.hub.names import parse_model_name
from edgechat.models.local.files import CONFIG
from edgechat.models.local.inventory import inventory
from edgechat.models.local.locations import hub_cache
from edgechat.settings import RuntimeQuant

_TIME_LIMIT = 60.0
_MAX_TOKENIZER = 2**24
_BYTES: dict[RuntimeQuant, float] = {"nf4": 0.5 + 1 / 64 + 1 / 512, "int8": 1.0}
"""Of a weight: NF4 with a scale for 64 of them, which is a byte itself (QLoRA, section 3)."""
_SLIDING = ("sliding_attention", "chunked_attention")
_WITHOUT_CACHE = ("linear_attention", "mamba", "mamba2", "conv", "recurrent")


@dataclass(frozen=True, slots=True)
class SafetensorsModel:
    """A model, here or on the hub."""

    name: str
    argument: str
    """What a program is given: the path of a folder, or owner/repo."""
    config: Config
    stored_bytes: int
    """Of all weights as they are stored."""
    is_here: bool
    template: str = ""
    """Its chat template; '' if that is not here."""

    @property
    def trained_context(self) -> int | None:
        """Tokens; None if it does not say."""
        return self.config.number("max_position_embeddings", "n_positions", "seq_length", "model_max_length")

    @property
    def n_heads(self) -> int:
        """Attention heads of a layer."""
        return max(1, self.config.require("num_attention_heads", "n_head"))

    @property
    def quantization(self) -> str:
        """How its weights are quantized, in capitals: 'AWQ', 'GPTQ', 'FP8'; '' if they are not."""
        stated = self.config.get("quantization_config")
        method = stated.get("quant_method") if isinstance(stated, dict) else None
        return one_line(method, 40).upper() if isinstance(method, str) else ""

    @property
    def is_mlx(self) -> bool:
        """Whether its weights are quantized as MLX alone reads them."""
        return isinstance(self.config.whole.get("quantization"), dict)

    @property
    def element_bytes(self) -> int:
        """Bytes of a number that it computes with, which is what its KV cache has."""
        dtype = self.config.get("dtype") or self.config.get("torch_dtype")
        return 4 if dtype == "float32" else 2

    def weights_bytes(self, quant: RuntimeQuant = "none") -> int:
        """Return what the weights take in memory: embeddings and the output stay as they are stored."""
        if quant == "none":
            return self.stored_bytes
        tables = 1 if self.config.get("tie_word_embeddings") else 2
        n_table = tables * self.config.require("vocab_size") * self.config.require("hidden_size", "n_embd")
        kept = min(self.stored_bytes, n_table * self.element_bytes)
        return int(kept + (self.stored_bytes - kept) / self.element_bytes * _BYTES[quant])

    def cache_bytes(self, n_tokens: int) -> int:
        """Return what keys and values of so many tokens take.

        2 x KV heads x head size x bytes of a number, for each layer; a layer that sees a window keeps no
        more than that, and one without attention over tokens keeps nothing that grows. With latent attention
        (MLA), the latent vector and the rotated part instead.
        """
        config = self.config
        latent = config.number("kv_lora_rank")
        if latent:
            per_token = latent + (config.number("qk_rope_head_dim") or 0)
        else:
            size = config.number("head_dim") or config.require("hidden_size", "n_embd") // self.n_heads
            per_token = 2 * size * (config.number("num_key_value_heads", "n_head_kv") or self.n_heads)
        window = config.number("sliding_window") or n_tokens
        kinds = config.layer_types("layer_types") or ("full_attention",) * config.n_layers
        tokens = sum(
            min(window, n_tokens) if kind in _SLIDING else n_tokens
            for kind in kinds
            if kind not in _WITHOUT_CACHE
        )
        return per_token * self.element_bytes * tokens


def read_safetensors(name: str, *, offline: bool) -> SafetensorsModel:
    """Return the model that a folder or owner/repo is; of the hub, its list of files and config are read.

    Raises ModelNotFound, ModelFileError, HubError.
    """
    folder = _folder(name)
    if folder is not None:
        return _in_folder(folder)
    repo = parse_model_name(name)
    if repo is None or repo.quant is not None or repo.file is not None or repo.revision is not None:
        raise ModelNotFound(
            f"{one_line(name, 100)} is neither a folder with config.json and safetensors nor owner/repo.",
            hint="GGUF files are run by edgechat itself, or with --engine llama-server.",
        )
    return _on_hub(repo.repo, offline=offline)


def _folder(name: str) -> Path | None:
    """Return the folder of a model that is here."""
    path = Path(os.path.abspath(os.path.expanduser(name))) if "\0" not in name else Path()
    if (path / CONFIG).is_file() and name:
        return path
    known = next((model.path for model in inventory().find(name) if model.path.is_dir()), None)
    if known is not None:
        return known
    repo = parse_model_name(name)
    if repo is None:
        return None
    snapshots = hub_cache() / f"models--{repo.repo.replace('/', '--')}" / "snapshots"
    try:  # one that lacks files is completed by the program
        found = sorted((one for one in snapshots.iterdir() if _weights(one)), key=os.path.getmtime)
    except OSError:
        return None
    return found[-1] if found and (found[-1] / CONFIG).is_file() else None


def _in_folder(folder: Path) -> SafetensorsModel:
    name = folder_name(folder)
    sizes = _weights(folder)
    if not sizes:
        raise ModelFileError(f"{name} has no safetensors.", hint="Use the folder of a complete model.")
    try:
        config = parse_config(bounded(folder / CONFIG, MAX_CONFIG), name)
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{name} cannot be read: {error}.", hint="Check the folder.") from error
    # From the hub's cache a program takes it by its name, and completes it.
    in_cache = folder.parent.name == "snapshots" and folder.is_relative_to(hub_cache())
    argument = name if in_cache else str(folder)
    return SafetensorsModel(name, argument, config, _total(sizes.items()), True, _template(folder))


def _template(folder: Path) -> str:
    with contextlib.suppress(OSError, ValueError, ModelFileError):
        if (path := folder / "chat_template.jinja").is_file():
            return bounded(path, MAX_CONFIG).decode("utf-8", "replace")
        if (path := folder / "tokenizer_config.json").is_file():
            return template_in(parse_json(bounded(path, _MAX_TOKENIZER), path.name)) or ""
    return ""


def _on_hub(repo: str, *, offline: bool) -> SafetensorsModel:
    if offline:
        raise ModelNotFound(f"{repo} is not on this machine, and edgechat is offline.", hint="Go online.")
    listing = list_repo(repo, None)
    sizes = [(file.name, file.size) for file in listing.files if "/" not in file.name]
    weights = _total(sizes)
    if not weights or CONFIG not in dict(sizes):
        raise ModelFileError(
            f"{repo} has no config.json and safetensors that such a program could run.",
            hint=f"To see what edgechat itself could run of it: edgechat plan {repo}",
        )
    hub = Endpoint(listing.hub)
    url = hub.file(repo, listing.commit, CONFIG)
    data = ask_hub(hub, repo, _TIME_LIMIT, lambda client: client.read(url, MAX_CONFIG))
    return SafetensorsModel(repo, repo, parse_config(data, repo), weights, False)


def _weights(folder: Path) -> dict[str, int]:
    try:
        return {file.name: file.stat().st_size for file in folder.glob("*.safetensors") if file.is_file()}
    except OSError:
        return {}


def _total(sizes: Iterable[tuple[str, int]]) -> int:
    """Return the size of the weights; some models have them a second time, in the format of their makers."""
    stored = {name: size for name, size in sizes if name.endswith(".safetensors")}
    usual = {name: size for name, size in stored.items() if name.startswith("model")}
    return sum((usual or stored).values())
