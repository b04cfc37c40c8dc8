"""What llama.cpp can compute on here, and how it was built: asked of ggml, inside a child process.

Listing the devices starts every backend that is built in, and with it the drivers below: a broken driver may
crash or hang. So nobody calls `inventory` but the child; all others ask it through `read_inventory`.
"""

from __future__ import annotations

import ctypes
from typing import Any, Literal

import msgspec

from edgechat.ask import ChildFailed, answer, ask

Kind = Literal["cpu", "gpu", "igpu", "accel", "meta"]
_KINDS: tuple[Kind, ...] = ("cpu", "gpu", "igpu", "accel", "meta")  # enum ggml_backend_dev_type

TIME_LIMIT = 20.0
"""Seconds. A CPU build answers in 0.4; the drivers of GPUs may take several to wake up."""


class NativeDevice(msgspec.Struct, frozen=True):
    """A device as ggml lists it."""

    name: str
    """What llama.cpp calls it: 'CPU', 'CUDA0', 'Vulkan1', 'MTL0'."""
    description: str
    kind: Kind
    """'igpu' computes in the machine's own memory; 'accel' helps the CPU (BLAS, AMX)."""
    backend: str
    """'CUDA', 'ROCm', 'Vulkan', 'SYCL', 'MTL', 'CPU', ..."""
    free: int
    """Bytes, as the driver says: for 'cpu' this is all of RAM and means nothing."""
    total: int
    device_id: str | None = None
    """The PCI address ('0000:c1:00.0') where it has one."""


class Build(msgspec.Struct, frozen=True):
    """How llama.cpp was built."""

    version: str
    """Of llama-cpp-python."""
    ggml: str
    """'0.25.3 (0c1e57098)'."""
    backends: tuple[str, ...]
    """The backends built in: 'CPU', 'CUDA', 'RPC', ..."""
    features: tuple[str, ...]
    """What the CPU backend was compiled with: 'AVX2', 'FMA', 'OPENMP', ..."""
    gpu_offload: bool
    """Whether some backend built in can hold layers; RPC counts."""
    rpc: bool
    mmap: bool
    mlock: bool
    system_info: str
    """The line that llama.cpp prints about itself."""


class Inventory(msgspec.Struct, frozen=True):
    """The answer of the child."""

    build: Build
    devices: tuple[NativeDevice, ...]


def read_inventory(limit: float = TIME_LIMIT) -> Inventory:
    """Ask a child for the inventory. Raises ChildFailed, within `limit` seconds."""
    try:
        return msgspec.msgpack.decode(ask("devices", limit=limit), type=Inventory)
    except msgspec.DecodeError as error:
        raise ChildFailed(f"gave an answer that makes no sense: {error}") from error


def main() -> None:
    """Answer with the inventory."""
    answer(lambda _request: msgspec.msgpack.encode(inventory()))


def inventory() -> Inventory:
    """Return what is here; loads llama.cpp and starts its backends."""
    import llama_cpp
    import llama_cpp.llama_cpp as lib

    from edgechat.native import logs

    logs.install()
    lib.llama_backend_init()
    ggml = _Ggml(lib._lib)
    backends = ggml.backends()
    build = Build(
        version=llama_cpp.__version__,
        ggml=f"{ggml.string('ggml_version')} ({ggml.string('ggml_commit')})",
        backends=backends,
        features=features_of(_text(lib.llama_print_system_info())),
        gpu_offload=bool(lib.llama_supports_gpu_offload()),
        rpc=bool(lib.llama_supports_rpc()),
        mmap=bool(lib.llama_supports_mmap()),
        mlock=bool(lib.llama_supports_mlock()),
        system_info=_text(lib.llama_print_system_info()),
    )
    return Inventory(build, ggml.devices())


def features_of(system_info: str) -> tuple[str, ...]:
    """Return what the line says about the CPU backend: 'CPU : AVX = 1 | FMA = 1 | CUDA : ARCHS = 890 | '."""
    features: list[str] = []
    backend = ""
    for part in system_info.split("|"):
        before, colon, after = part.rpartition(" : ")
        backend = before.strip() if colon else backend
        name, _, value = after.partition("=")
        if backend == "CPU" and value.strip() not in ("", "0"):
            features.append(name.strip())
    return tuple(features)


class _Props(ctypes.Structure):
    """struct ggml_backend_dev_props, with its five capabilities at the end."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        # More room than five booleans take: a newer ggml may have added some.
        ("caps", ctypes.c_bool * 64),
    )


class _Ggml:
    """The functions of ggml that llama_cpp does not bind, found through llama.cpp's own library."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def _call(self, name: str, result: Any, *args: Any) -> Any:
        function = getattr(self._library, name)
        function.restype = result
        function.argtypes = [type(arg) for arg in args]
        return function(*args)

    def string(self, name: str) -> str:
        """Return what a function without arguments says; '?' where this ggml has no such function."""
        try:
            return _text(self._call(name, ctypes.c_char_p)) or "?"
        except AttributeError:
            return "?"

    def backends(self) -> tuple[str, ...]:
        """Return the names of the backends that are built in."""
        count = int(self._call("ggml_backend_reg_count", ctypes.c_size_t))
        handles = [
            self._call("ggml_backend_reg_get", ctypes.c_void_p, ctypes.c_size_t(index))
            for index in range(count)
        ]
        return tuple(self._name("ggml_backend_reg_name", handle) for handle in handles)

    def devices(self) -> tuple[NativeDevice, ...]:
        """Return the devices, those of RPC servers left out: they are other machines."""
        count = int(self._call("ggml_backend_dev_count", ctypes.c_size_t))
        listed = (self._device(index) for index in range(count))
        return tuple(device for device in listed if device.backend != "RPC")

    def _device(self, index: int) -> NativeDevice:
        handle = ctypes.c_void_p(self._call("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t(index)))
        props = _Props()
        self._call("ggml_backend_dev_get_props", None, handle, ctypes.pointer(props))
        registry = self._call("ggml_backend_dev_backend_reg", ctypes.c_void_p, handle)
        return NativeDevice(
            name=_text(props.name),
            description=_text(props.description),
            kind=_KINDS[props.type] if 0 <= props.type < len(_KINDS) else "meta",
            backend=self._name("ggml_backend_reg_name", registry),
            free=int(props.memory_free),
            total=int(props.memory_total),
            device_id=_text(props.device_id).lower() or None,
        )

    def _name(self, function: str, handle: int) -> str:
        return _text(self._call(function, ctypes.c_char_p, ctypes.c_void_p(handle)))


def _text(raw: bytes | None) -> str:
    return raw.decode("utf-8", "replace").strip() if raw else ""
