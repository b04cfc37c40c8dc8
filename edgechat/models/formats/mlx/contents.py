"""The parts of an MLX model that planning needs, from a folder or the hub, and the header built from them."""

from __future__ import annotations

import errno
import zlib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from edgechat.base.errors import ModelFileError
from edgechat.models.formats import gguf
from edgechat.models.formats.header import AGAIN, ModelHeader, unsound
from edgechat.models.formats.mlx.config import (
    MAX_CONFIG,
    bounded,
    folder_name,
    parse_config,
    parse_json,
    require_language_model,
)
from edgechat.models.formats.mlx.metadata import MAX_TEMPLATE, metadata_of, template_in, tokenizer_entries
from edgechat.models.formats.mlx.tensors import (
    MAX_TENSORS,
    PREFIX,
    StoredTensor,
    parse_table,
    table_length,
    tensors_of,
)
from edgechat.models.formats.mlx.vision import PROCESSORS, vision_entries
from edgechat.models.local.files import CONFIG

MAX_FILES = 1000
MAX_TABLES = 64 << 20
"""Maximum total size of a model's tensor tables, in bytes."""
_MAX_TOKENIZER = 4 << 20
"""Maximum size of a tokenizer_config.json, in bytes. Some list every added token."""


class TensorTable(msgspec.Struct, frozen=True, array_like=True):
    """The tensor table of one safetensors file."""

    file: str
    """The file's name, for use in messages."""
    file_size: int
    data: bytes


class Contents(msgspec.Struct, frozen=True, array_like=True):
    """The parts of a model that are read. None of them are trusted."""

    config: Annotated[bytes, Meta(max_length=MAX_CONFIG)]
    tables: Annotated[tuple[TensorTable, ...], Meta(max_length=MAX_FILES)]
    tokenizer: bytes = b""
    """Contents of tokenizer_config.json, if requested."""
    template: str | None = None
    """Contents of chat_template.jinja, if requested."""
    sees: bool = True
    """Whether there is a config for an image processor, as there is for every model with vision."""

    def header(self, name: str) -> ModelHeader:
        """Return the model's header. name: the model's name, for use in messages. Raises ModelFileError."""
        config = parse_config(self.config, name)
        require_language_model(config)
        stored: list[StoredTensor] = []
        for table in self.tables:
            stored += parse_table(table.data, table.file_size, table.file)
            if len(stored) > MAX_TENSORS:
                raise unsound(table.file, f"the model has more than {MAX_TENSORS} tensors")
        tensors, vision_tensors = tensors_of(stored, config)
        if not tensors:
            raise ModelFileError(f"{name} contains no weights.", hint="Use a complete model.")
        rows = (tensor.shape[-1] for tensor in tensors if tensor.name == "token_embd.weight")
        metadata = metadata_of(config, next(rows, None))
        if self.sees:
            metadata |= vision_entries(config, vision_tensors)
        metadata["general.name"] = name.rpartition("/")[2]
        tokenizer = parse_json(self.tokenizer, f"{name}'s tokenizer_config.json") if self.tokenizer else {}
        return ModelHeader(
            path=name,
            version=0,
            metadata=metadata | tokenizer_entries(config, tokenizer, self.template),
            tensors=tensors,
            data_offset=0,
            alignment=1,
            file_size=sum(table.file_size for table in self.tables),
            format="mlx",
            vision_tensors=vision_tensors if self.sees else (),
        )

    def pack(self) -> bytes:
        """Return the contents in compressed form, for use with `unpack`."""
        return zlib.compress(msgspec.msgpack.encode(self), 9)


def unpack(data: bytes) -> Contents:
    """Unpack the result of `Contents.pack`. Raises ModelFileError for any other data."""
    stream = zlib.decompressobj()
    try:
        packed = stream.decompress(data, MAX_TABLES + MAX_CONFIG)
        if not stream.eof:
            raise zlib.error("it is truncated, or too large")
        return msgspec.msgpack.decode(packed, type=Contents)
    except (zlib.error, msgspec.MsgspecError, RecursionError) as error:
        raise ModelFileError(f"A cached header is damaged: {error}.", hint=AGAIN) from error


def read_folder(folder: Path) -> ModelHeader:
    """Read the header of the MLX model in a folder.

    Raises ModelFileError if the model is invalid or cannot be opened.
    """
    name = folder_name(folder)
    try:
        files = sorted(folder.glob("model*.safetensors"))
        if not files:
            raise ModelFileError(
                f"{name} is not an MLX model: it contains no model*.safetensors.",
                hint="Use a .gguf file, or the folder of an MLX model.",
            )
        return Contents(
            config=bounded(folder / CONFIG, MAX_CONFIG),
            tables=_read_tables(files),
            tokenizer=_read_optional(folder / "tokenizer_config.json", _MAX_TOKENIZER),
            template=_read_template(folder),
            sees=any((folder / processor).is_file() for processor in PROCESSORS),
        ).header(name)
    except FileNotFoundError as error:
        what = Path(error.filename).name if error.filename else "A file"
        raise ModelFileError(f"{what} is missing from {name}.", hint="Download it again.") from None
    except PermissionError:
        raise ModelFileError(
            f"Permission denied: the files of {name}.", hint=f"To allow reading them: chmod -R u+rX {folder}"
        ) from None
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{name} cannot be read: {error}.", hint="Check the disk.") from error


def _read_tables(files: list[Path]) -> tuple[TensorTable, ...]:
    tables: list[TensorTable] = []
    total = 0
    for path in files[:MAX_FILES]:
        if not path.is_file():
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        with path.open("rb") as file:
            size = path.stat().st_size
            n = table_length(file.read(PREFIX), size, path.name)
            total += n
            if total > MAX_TABLES:
                raise unsound(path.name, f"the tensor tables of the model take more than {MAX_TABLES} bytes")
            tables.append(TensorTable(path.name, size, file.read(n)))
    return tuple(tables)


def _read_template(folder: Path) -> str | None:
    template = _read_optional(folder / "chat_template.jinja", MAX_TEMPLATE).decode("utf-8", "replace")
    if template:
        return template
    table = _read_optional(folder / "chat_template.json", MAX_TEMPLATE)
    return template_in(parse_json(table, "chat_template.json")) if table else None


def _read_optional(path: Path, most: int) -> bytes:
    return bounded(path, most) if path.is_file() else b""


def read_model(path: Path) -> ModelHeader:
    """Read the header of the model that a backend would load from `path`: a GGUF file, or an MLX folder.

    Raises ModelFileError, including if there is no language model.
    """
    return read_folder(path) if path.is_dir() else gguf.read_model(path)
