"""The sources that are asked in children, against a driver library and a torch made for the purpose."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgechat.ask import ChildFailed
from edgechat.device import nvml
from edgechat.device.sources import has_torch, read_source

GIB = 2**30
pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or shutil.which("cc") is None, reason="needs a C compiler to make the library"
)


def build(folder: Path, *options: str) -> Path:
    path = folder / ("libnvidia-ml.so.1" if sys.platform != "win32" else "nvml.dll")
    source = Path(__file__).with_name("nvml.c")
    subprocess.run(["cc", "-shared", "-fPIC", *options, "-o", path, source], check=True)
    return path


def test_the_cards_that_nvml_tells_of(tmp_path: Path) -> None:
    first, second = nvml.sightings(ctypes.CDLL(str(build(tmp_path))))
    assert (first.name, first.pci) == ("NVIDIA RTX A2000", "0000:c1:00.0")
    assert (first.total, first.free, first.shares_ram) == (6 * GIB, 5 * GIB, None)
    assert (second.name, second.pci) == ("NVIDIA GB10", "0001:c1:00.0")
    assert (second.total, second.shares_ram) == (0, True)


def test_a_driver_that_knows_itself_to_be_broken(tmp_path: Path) -> None:
    with pytest.raises(nvml.NvmlFailed, match="Driver/library version mismatch"):
        nvml.sightings(ctypes.CDLL(str(build(tmp_path, "-DBROKEN=18"))))


def test_a_library_that_lacks_a_function(tmp_path: Path) -> None:
    empty = tmp_path / "empty.c"
    empty.write_text("int nvmlInit_v2(void) { return 0; } int nvmlShutdown(void) { return 0; }")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "empty.so", empty], check=True)
    with pytest.raises(nvml.NvmlFailed, match="this driver has no nvmlDeviceGetCount_v2"):
        nvml.sightings(ctypes.CDLL(str(tmp_path / "empty.so")))


@pytest.mark.skipif(sys.platform != "linux", reason="how a library is found differs")
def test_the_child_that_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert [card.name for card in read_source("nvml")] == ["NVIDIA RTX A2000", "NVIDIA GB10"]
    build(tmp_path, "-DBROKEN=18")
    with pytest.raises(ChildFailed, match="says: Driver/library version mismatch"):
        read_source("nvml")


TORCH = """
class _Cuda:
    def is_available(self): return True
    def device_count(self): return 1
    def mem_get_info(self, index): return (3 * 2**30, 4 * 2**30)
    def get_device_properties(self, index):
        class About: name = "A card"; total_memory = 4 * 2**30; pci_bus_id = 193; pci_device_id = 0
        return About
class _Nothing:
    def is_available(self): return False
    hip = None
cuda = _Cuda(); xpu = _Nothing(); version = _Nothing()
class backends: mps = _Nothing()
"""


def test_torch_if_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    assert has_torch()
    (card,) = read_source("torch")
    assert (card.vendor, card.pci, card.free, card.total) == ("nvidia", "0000:c1:00.0", 3 * GIB, 4 * GIB)
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    with pytest.raises(ChildFailed, match="says: libcudart"):
        read_source("torch")
