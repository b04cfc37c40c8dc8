"""The sources that are asked in children, against a driver library and a torch made for the purpose."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgechat.base.process.ask import ChildFailed
from edgechat.device.gpu_readings import has_torch, read_source

GIB = 2**30
pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or shutil.which("cc") is None, reason="needs a C compiler to make the library"
)


def build(folder, *options):
    path = folder / ("libnvidia-ml.so.1" if sys.platform != "win32" else "nvml.dll")
    source = Path(__file__).with_name("nvml.c")
    subprocess.run(["cc", "-shared", "-fPIC", *options, "-o", path, source], check=True)
    return path


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """Ask for the cards beside a driver that is built with some options."""

    def ask(*options):
        build(tmp_path, *options)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
        return read_source("nvml")

    return ask


def test_the_cards_that_nvml_tells_of(seen):
    first, second = seen()
    assert (first.name, first.pci) == ("NVIDIA RTX A2000", "0000:c1:00.0")
    assert (first.total, first.free, first.shares_ram) == (6 * GIB, 5 * GIB, None)
    assert (second.name, second.pci) == ("NVIDIA GB10", "0001:c1:00.0")
    assert (second.total, second.shares_ram) == (0, True)


def test_a_name_that_is_no_text(seen):
    first, _ = seen(r'-DNAME="\xff\xfe"')
    assert (first.name, first.pci, first.total) == ("", "0000:c1:00.0", 6 * GIB)


def test_a_driver_that_knows_itself_to_be_broken(seen):
    with pytest.raises(ChildFailed, match="version mismatch"):
        seen("-DBROKEN=18")


def test_a_library_that_lacks_a_function(seen):
    with pytest.raises(ChildFailed, match="reported: Function Not Found"):
        seen("-DOLD")


def test_without_a_driver(monkeypatch, tmp_path):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert read_source("nvml") == () or Path("/dev/nvidiactl").exists()


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


def test_torch_if_it_is_installed(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    assert has_torch()
    (card,) = read_source("torch")
    assert (card.vendor, card.pci, card.free, card.total) == ("nvidia", "0000:c1:00.0", 3 * GIB, 4 * GIB)
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    with pytest.raises(ChildFailed, match="reported: libcudart"):
        read_source("torch")
