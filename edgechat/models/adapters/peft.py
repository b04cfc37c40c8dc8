"""Converter from PEFT adapters (adapter_config.json and adapter_model.safetensors) to GGUF.

Follows llama.cpp's convert_lora_to_gguf.py. Tensor names are translated. If converting the model reorders the
rows of its query and key matrices, the rows of lora_b are reordered in the same way. Architectures whose row
order is not known are rejected. lora_b is multiplied by PEFT's scale (alpha divided by the rank or by its
square root), so ranks can differ between modules. The converted file has no alpha, so llama.cpp applies it
unscaled.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta

from edgechat.base import paths
from edgechat.base.errors import DiskError, ModelFileError, NotAnAdapter
from edgechat.models.adapters.reading import (
    CONFIG,
    EMBEDDING,
    KIND,
    MAX_ALPHA,
    MAX_BYTES,
    WEIGHTS,
    Adapter,
    checked_pairs,
)
from edgechat.models.formats.gguf import aligned, parse_header, read_header
from edgechat.models.formats.header import MAX_LAYERS, ModelHeader, ModelTensor, show
from edgechat.models.formats.mlx.tensors import PREFIX, StoredTensor, parse_table, table_length
from edgechat.models.formats.quants import GgmlType
from edgechat.models.formats.skeleton import encoded_header

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


FOLDER = "adapters"
"""Subfolder of the cache folder that holds the converted files."""
_FORMAT = 1
"""Part of a converted file's name. Increase it whenever the same input would produce different output."""
_MAX_CONFIG = 1 << 20
_MAX_RANK = 1 << 16
_ALIGNMENT = 32
_READ = 1 << 20

_REORDERED = frozenset({"llama", "mistral3", "granite", "smollm3"})
"""Architectures whose query and key rows are reordered: llama.cpp rotates adjacent pairs of channels,
while PEFT's models rotate halves.
"""
_ARCHITECTURES = _REORDERED | {
    *("qwen2", "qwen2moe", "qwen3", "qwen3moe", "gemma", "gemma2", "gemma3", "gemma4", "phi3", "lfm2"),
}
_MODULES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.out_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
}
_BESIDE = {"embed_tokens": EMBEDDING, "lm_head": "output.weight"}
_PREFIX = r"(?:base_model\.model\.)?(?:model\.)?(?:language_model\.)?(?:model\.)?"
_NAME = re.compile(
    rf"{_PREFIX}(?:layers\.(?P<layer>\d{{1,3}})\.(?P<module>[\w.]+)|(?P<beside>embed_tokens|lm_head))"
    r"\.lora_(?:embedding_)?(?P<half>[AB])(?:\.default)?(?:\.weight)?"
)
_PLAIN = re.compile(r"[\w.]+")
_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}

_Number = Annotated[float, Meta(ge=-MAX_ALPHA, le=MAX_ALPHA)]
_Rank = Annotated[int, Meta(ge=1, le=_MAX_RANK)]


class PeftConfig(msgspec.Struct, kw_only=True):
    """The fields read from adapter_config.json. The others do not matter once an adapter is trained."""

    peft_type: str = ""
    base_model_name_or_path: str | None = None
    r: _Rank = 8
    lora_alpha: _Number = 8
    rank_pattern: dict[str, _Rank] | None = None
    alpha_pattern: dict[str, _Number] | None = None
    use_rslora: bool = False
    use_dora: bool = False
    fan_in_fan_out: bool = False
    bias: str = "none"
    lora_bias: bool = False
    modules_to_save: list[str] | None = None
    layer_replication: Any = None
    target_parameters: Any = None
    alora_invocation_tokens: Any = None

    @property
    def obstacle(self) -> str:
        """Why the adapter cannot be converted, phrased as the end of a sentence, or '' if it can."""
        if self.peft_type != "LORA":
            return f"its type is {show(self.peft_type)}, not LORA"
        unsupported = {
            "DoRA": self.use_dora,
            "trained biases": self.bias != "none" or self.lora_bias,
            "whole trained layers (modules_to_save)": self.modules_to_save,
            "transposed weights (fan_in_fan_out)": self.fan_in_fan_out,
            "layer_replication": self.layer_replication,
            "target_parameters": self.target_parameters,
            "invocation tokens (aLoRA)": self.alora_invocation_tokens,
            "regular expressions (alpha_pattern)": not all(map(_PLAIN.fullmatch, self.alpha_pattern or ())),
        }
        return next(
            (f"it uses {what}, which llama.cpp cannot apply" for what, on in unsupported.items() if on), ""
        )

    def factor(self, module: str, rank: int) -> float:
        """Return the factor by which to multiply a module's lora_b."""
        patterns = (self.alpha_pattern or {}).items()
        matching = (value for pattern, value in patterns if f".{module}".endswith(f".{pattern}"))
        alpha = next(matching, self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def read_config(folder: Path) -> PeftConfig:
    """Return the config in a PEFT folder. Raises NotAnAdapter."""
    try:
        return msgspec.json.decode(paths.read_bytes(folder / CONFIG, _MAX_CONFIG), type=PeftConfig)
    except FileNotFoundError:
        raise NotAnAdapter(
            f"{folder} is a folder without {CONFIG}, so it is not an adapter.",
            hint="Use a .gguf file, or a folder that PEFT has saved.",
        ) from None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotAnAdapter(f"{folder / CONFIG} cannot be read: {error}.", hint="Use another copy.") from error


def converted(folder: Path, model: ModelHeader) -> Path:
    """Return the GGUF file made from a PEFT folder, converting the folder the first time (see `conversions`).

    Raises NotAnAdapter, ModelFileError, DiskError.
    """
    config = read_config(folder)
    if config.obstacle:
        raise NotAnAdapter(
            f"{folder} cannot be converted: {config.obstacle}.",
            hint="Use an adapter that was trained as plain LoRA.",
        )
    if model.format != "gguf" or model.architecture not in _ARCHITECTURES:
        raise NotAnAdapter(
            f"edgechat cannot convert adapters for the architecture {show(model.architecture)}.",
            hint="Convert it with llama.cpp's convert_lora_to_gguf.py, and use the .gguf file.",
        )
    target = None
    try:
        with (folder / WEIGHTS).open("rb") as file:
            table = _table(file, folder)
            cache = paths.cache_dir() / FOLDER
            target = cache / f"{_prefix(folder)}{_digest(file, config, model)}.gguf"
            if not target.exists():
                cache.mkdir(mode=0o700, exist_ok=True)
                _write(file, table, config, model, target)
    except FileNotFoundError:
        raise _weightless(folder) from None
    except OSError as error:
        raise DiskError(f"{folder} cannot be converted: {error.strerror or error}.") from error
    return target


def conversions(folder: Path) -> list[Path]:
    """Return the GGUF files converted from a folder, possibly for several models."""
    return sorted((paths.cache_dir() / FOLDER).glob(f"{_prefix(folder)}*.gguf"))


def read_weights(folder: Path) -> None:
    """Check a PEFT folder's config and tensor table without needing the model.

    Raises NotAnAdapter, ModelFileError.
    """
    read_config(folder)
    try:
        with (folder / WEIGHTS).open("rb") as file:
            _table(file, folder)
    except FileNotFoundError:
        raise _weightless(folder) from None
    except OSError as error:
        raise ModelFileError(f"{folder / WEIGHTS} cannot be read: {error.strerror or error}.") from error


def _prefix(folder: Path) -> str:
    """Return the prefix shared by the names of all files converted from a folder."""
    return hashlib.blake2b(os.fsencode(os.path.realpath(folder)), digest_size=8).hexdigest() + "-"


class _PeftWeights(msgspec.Struct):
    """The tensors in a folder, and the offset at which their data starts."""

    name: str
    start: int
    pairs: dict[str, dict[str, tuple[str, StoredTensor]]]
    """Module names and tensors, keyed by the name of the tensor they modify, then by 'A' or 'B'."""


def _table(file: BinaryIO, folder: Path) -> _PeftWeights:
    """Read the tensor table of the weights file. Raises NotAnAdapter, ModelFileError."""
    name, size = str(folder / WEIGHTS), os.fstat(file.fileno()).st_size
    if size > MAX_BYTES:
        raise NotAnAdapter(f"{name} has {size} bytes; the limit for adapters is {MAX_BYTES}.")
    length = table_length(file.read(PREFIX), size, name)
    table = _PeftWeights(name, PREFIX + length, {})
    for tensor in parse_table(file.read(length), size, name):
        target, half, module = _translated(tensor.name, name)
        if tensor.dtype not in _DTYPES or len(tensor.shape) != 2 or not all(tensor.shape):
            raise _unfit(name, f"its tensor {show(tensor.name)} is {tensor.dtype} {list(tensor.shape)}")
        table.pairs.setdefault(target, {})[half] = module, tensor
    for target, pair in table.pairs.items():
        if len(pair) < 2:
            raise _unfit(name, f"it has only one of lora_A and lora_B for {show(target)}")
    return table


def _digest(file: BinaryIO, config: PeftConfig, model: ModelHeader) -> str:
    """Return a hash of everything that affects the result of a conversion."""
    digest = hashlib.blake2b(digest_size=16)
    heads = (model.architecture, model.heads, model.kv_heads) if model.architecture in _REORDERED else ()
    digest.update(repr((_FORMAT, model.architecture, heads, config)).encode())
    file.seek(0)
    while block := file.read(_READ):
        digest.update(block)
    return digest.hexdigest()


def _translated(tensor: str, name: str) -> tuple[str, str, str]:
    """Return the model tensor that a PEFT tensor modifies, the half ('A' or 'B'), and the PEFT module."""
    match = _NAME.fullmatch(tensor)
    module = match and (match["module"] or match["beside"])
    if match is None or not module or (match["layer"] and module not in _MODULES):
        raise _unfit(name, f"edgechat cannot translate its tensor {show(tensor)}")
    path = tensor.removeprefix("base_model.model.").partition(".lora_")[0]
    if match["beside"]:
        return _BESIDE[module], match["half"], path
    if int(match["layer"]) >= MAX_LAYERS:
        raise _unfit(name, f"its tensor {show(tensor)} has an impossible layer number")
    layer = int(match["layer"])
    return f"blk.{layer}.{_MODULES[module]}.weight", match["half"], path


def _write(file: BinaryIO, table: _PeftWeights, config: PeftConfig, model: ModelHeader, target: Path) -> None:
    """Write the converted file atomically, after checking it against the model."""
    tensors: list[ModelTensor] = []
    at = 0
    for name, pair in table.pairs.items():
        for half in "AB":
            _, stored = pair[half]
            is_rows = name == EMBEDDING and half == "A"
            shape = stored.shape if is_rows else stored.shape[::-1]
            size = 4 * math.prod(shape)
            tensors.append(ModelTensor(f"{name}.lora_{half.lower()}", shape, GgmlType.F32, at, size))
            at = aligned(at + size, _ALIGNMENT)
    metadata = {
        "general.type": KIND,
        "general.architecture": model.architecture,
        "adapter.type": "lora",
        "general.name": Path(table.name).parent.name,
    }
    head = encoded_header(metadata, tensors, _ALIGNMENT, table.name)
    checked_pairs(parse_header(head, len(head) + at, table.name), model)
    temporary = target.with_name(f"{paths.UNFINISHED}{os.urandom(8).hex()}")
    try:
        with open(temporary, "xb", opener=paths.private) as out:
            out.write(head)
            for name in table.pairs:
                for half in "AB":
                    data = _converted(file, table, name, half, config, model).tobytes()
                    out.write(data + bytes(-len(data) % _ALIGNMENT))
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _converted(
    file: BinaryIO, table: _PeftWeights, name: str, half: str, config: PeftConfig, model: ModelHeader
) -> npt.NDArray[np.float32]:
    """Return a tensor in GGUF's layout, with the contiguous dimension last."""
    module, stored = table.pairs[name][half]
    values = _values(file, table.start, stored, table.name)
    if half == "A":
        return values.T.copy() if name == EMBEDDING else values
    values *= config.factor(module, stored.shape[1])
    layer = re.match(r"blk\.(\d+)\.attn_([qk])\.", name)
    if layer is None or model.architecture not in _REORDERED:
        return values
    counts = model.heads if layer[2] == "q" else model.kv_heads
    n_heads = counts[int(layer[1])]
    n_rows, rank = values.shape
    if not n_heads or n_rows % (2 * n_heads):
        raise _unfit(table.name, f"the {n_rows} rows of {show(name)} do not divide into {n_heads} heads")
    return values.reshape(n_heads, 2, n_rows // n_heads // 2, rank).swapaxes(1, 2).reshape(n_rows, rank)


def _values(file: BinaryIO, start: int, stored: StoredTensor, name: str) -> npt.NDArray[np.float32]:
    import numpy as np

    file.seek(start + stored.offset)
    data = file.read(stored.n_bytes)
    if len(data) != stored.n_bytes:
        raise ModelFileError(f"{name} was truncated while it was being read.")
    raw = np.frombuffer(data, _DTYPES[stored.dtype]).reshape(stored.shape)
    if stored.dtype != "BF16":
        return raw.astype(np.float32)
    return (raw.astype(np.uint32) << 16).view(np.float32)


def _weightless(folder: Path) -> NotAnAdapter:
    return NotAnAdapter(
        f"{folder} has no {WEIGHTS}.", hint="Save it as safetensors; edgechat does not load pickled weights."
    )


def _unfit(name: str, why: str) -> NotAnAdapter:
    return NotAnAdapter(
        f"{name} cannot be converted: {why}.",
        hint="Convert it with llama.cpp's convert_lora_to_gguf.py, and use the .gguf file.",
    )


def open_adapter(path: Path, model: ModelHeader) -> Adapter:
    """Return the adapter in a GGUF file or PEFT folder. A folder is converted the first time.

    model: the header of the model to adapt. Raises NotAnAdapter, ModelFileError, or DiskError if the
    converted file cannot be written.
    """
    if path.is_dir():
        path = converted(path, model)
    header = read_header(path)
    return Adapter(path, header, checked_pairs(header, model))
