"""llama.cpp's devices and build, as reported by ggml in a child process.

Listing devices starts every built-in backend with its drivers, which may crash or hang. So only the child
calls `inventory`; everything else uses `read_inventory`.
"""

from __future__ import annotations

import ctypes
from typing import Literal

import msgspec

from edgechat.base.errors import ServerRefused
from edgechat.base.process.ask import ChildFailed, answer, ask
from edgechat.native.accelerators import rpc as servers

Kind = Literal["cpu", "gpu", "igpu", "accel", "meta"]
_KINDS: tuple[Kind, ...] = ("cpu", "gpu", "igpu", "accel", "meta")  # enum ggml_backend_dev_type

TIME_LIMIT = 20.0
"""Time limit in seconds. A CPU build answers in 0.4; GPU drivers may take several."""


class NativeDevice(msgspec.Struct, frozen=True):
    """A device, as listed by ggml."""

    name: str
    """llama.cpp's name: 'CPU', 'CUDA0', 'Vulkan1', 'MTL0'."""
    description: str
    kind: Kind
    """'igpu' computes in RAM; 'accel' helps the CPU (BLAS, AMX)."""
    backend: str
    """'CUDA', 'ROCm', 'Vulkan', 'SYCL', 'MTL', 'CPU', ..."""
    free: int
    """Free memory in bytes, according to the driver. Meaningless for 'cpu', which reports all of RAM."""
    total: int
    device_id: str | None = None
    """PCI address ('0000:c1:00.0'), if any."""


class Build(msgspec.Struct, frozen=True):
    """A build of llama.cpp."""

    version: str
    """The version of llama-cpp-python."""
    ggml: str
    """ggml's version and commit, such as '0.25.3 (0c1e57098)'."""
    backends: tuple[str, ...]
    """Built-in backends: 'CPU', 'CUDA', 'RPC', ..."""
    features: tuple[str, ...]
    """Instruction sets of the CPU backend: 'AVX2', 'FMA', 'OPENMP', ..."""
    gpu_offload: bool
    """Whether a built-in backend, including RPC, can hold layers."""
    rpc: bool
    mmap: bool
    mlock: bool
    system_info: str
    unloaded: tuple[str, ...] = ()
    """Installed backend modules that did not load because their driver is missing or too old."""


class DeviceInventory(msgspec.Struct, frozen=True):
    """llama.cpp's build and devices, as found by the child."""

    build: Build
    devices: tuple[NativeDevice, ...]


class _Question(msgspec.Struct, frozen=True):
    rpc: tuple[str, ...] = ()


class _Answer(msgspec.Struct, frozen=True):
    """The child's answer: an inventory, or an error message if a server was refused."""

    inventory: DeviceInventory | None = None
    refused: str = ""


def read_inventory(limit: float = TIME_LIMIT, rpc: tuple[str, ...] = ()) -> DeviceInventory:
    """Ask a child for the inventory, including the devices of the given RPC servers (host:port).

    Free memory excludes whatever the child's own drivers use, just as in a worker. Raises ServerRefused, or
    ChildFailed if the child fails or takes more than `limit` seconds.
    """
    question = msgspec.msgpack.encode(_Question(servers.check(rpc)))
    try:
        reply = msgspec.msgpack.decode(ask("devices", question, limit=limit), type=_Answer)
    except msgspec.DecodeError as error:
        raise ChildFailed(f"gave an invalid answer: {error}") from error
    if reply.inventory is None:
        raise ServerRefused(reply.refused)
    return reply.inventory


def main() -> None:
    """Send the inventory that the parent asked for."""

    def encoded(question: bytes) -> bytes:
        try:
            reply = _Answer(inventory(msgspec.msgpack.decode(question, type=_Question).rpc))
        except ServerRefused as error:
            reply = _Answer(refused=error.message)
        return msgspec.msgpack.encode(reply)

    answer(encoded)


def inventory(rpc: tuple[str, ...] = ()) -> DeviceInventory:
    """Load llama.cpp, start its backends and return the inventory.

    rpc: servers whose devices are listed as GPUs. Raises ServerRefused.
    """
    import llama_cpp
    import llama_cpp.llama_cpp as lib

    from edgechat.native import ggml, logs

    logs.install()
    ggml.start()
    servers.register(rpc)
    backends = [ggml.registry_name(registry) for registry in ggml.registries()]
    build = Build(
        version=llama_cpp.__version__,
        ggml=f"{_version('ggml_version')} ({_version('ggml_commit')})",
        backends=tuple(name for name in backends if not name.startswith(f"{servers.NAME}[")),
        features=features_of(ggml.text(lib.llama_print_system_info())),
        gpu_offload=bool(lib.llama_supports_gpu_offload()),
        rpc=bool(lib.llama_supports_rpc()),
        mmap=bool(lib.llama_supports_mmap()),
        mlock=bool(lib.llama_supports_mlock()),
        system_info=ggml.text(lib.llama_print_system_info()),
        unloaded=tuple(name for name in ggml.modules() if name not in backends),
    )
    return DeviceInventory(build, _devices(servers.check(rpc)))


def features_of(system_info: str) -> tuple[str, ...]:
    """Extract the CPU backend's features from 'CPU : AVX = 1 | FMA = 1 | CUDA : ARCHS = 890 | '."""
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
    """struct ggml_backend_dev_props, which ends with five capability flags."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        # Room for more than five flags, in case a newer ggml adds some.
        ("caps", ctypes.c_bool * 64),
    )


def _devices(addresses: tuple[str, ...]) -> tuple[NativeDevice, ...]:
    """Return the devices, leaving out those of previously added RPC servers, which may have stopped."""
    from edgechat.native import ggml

    devices: list[NativeDevice] = []
    for handle in ggml.devices():
        backend = ggml.registry_name(ggml.ask("ggml_backend_dev_backend_reg", ctypes.c_void_p, handle))
        # An RPC device's description is its address.
        address = ggml.text(ggml.ask("ggml_backend_dev_description", ctypes.c_char_p, handle))
        if backend == servers.NAME and address not in addresses:
            continue
        props = _Props()
        ggml.call("ggml_backend_dev_get_props", None, ctypes.c_void_p(handle), ctypes.pointer(props))
        device = NativeDevice(
            name=ggml.text(props.name),
            description=ggml.text(props.description),
            kind=_KINDS[props.type] if 0 <= props.type < len(_KINDS) else "meta",
            backend=backend,
            free=int(props.memory_free),
            total=int(props.memory_total),
            device_id=ggml.text(props.device_id).lower() or None,
        )
        devices.append(device)
    return tuple(devices)


def _version(name: str) -> str:
    """Return the result of a function that takes no arguments, or '?' if this ggml lacks it."""
    from edgechat.native import ggml

    try:
        return ggml.text(ggml.call(name, ctypes.c_char_p)) or "?"
    except AttributeError:
        return "?"
