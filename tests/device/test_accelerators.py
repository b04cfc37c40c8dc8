import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.device.accelerators import GpuReading, ggml_readings, merge
from edgechat.device.cpu import read_cpu
from edgechat.device.gpu_readings import kernel_readings, mac_gpu
from edgechat.device.memory import Memory
from edgechat.device.profile import DeviceProfile
from edgechat.native.accelerators.devices import NativeDevice
from tests.device import trees

GIB = 2**30
RAM = Memory(32 * GIB, 20 * GIB)


def native(name, description="", **fields):
    backend = name.rstrip("0123456789")
    values = {"kind": "gpu", "free": 8 * GIB, "total": 8 * GIB, "device_id": None} | fields
    return NativeDevice(name=name, description=description, backend=backend, **values)


def nvml(pci="0000:01:00.0", **fields):
    values = {"name": "NVIDIA GeForce RTX 4060", "total": 8 * GIB, "free": 7 * GIB} | fields
    return GpuReading(source="nvml", vendor="nvidia", pci=pci, **values)


def test_a_card_seen_by_all_is_one_card_with_the_smallest_free():
    seen = ggml_readings(
        [
            native("CUDA0", "NVIDIA GeForce RTX 4060", device_id="0000:01:00.0", free=6 * GIB),
            native("Vulkan0", "NVIDIA GeForce RTX 4060", device_id="0000:01:00.0", free=9 * GIB),
            native("CPU", "A processor", kind="cpu"),
        ]
    )
    kernel = GpuReading(source="kernel", vendor="nvidia", name="NVIDIA GPU", pci="0000:01:00.0")
    (card,) = merge([*seen, nvml(), kernel], RAM)
    assert card.devices == ("CUDA0", "Vulkan0")
    assert (card.name, card.vendor) == ("NVIDIA GeForce RTX 4060", "nvidia")
    assert (card.total, card.free, card.own) == (8 * GIB, 6 * GIB, 6 * GIB)
    assert card.sources == ("ggml", "nvml", "kernel")
    assert not card.shares_ram


def test_two_cards_alike_stay_two_in_any_order():
    first, second = native("CUDA0", device_id="0000:01:00.0"), native("CUDA1", device_id="0000:02:00.0")
    cards = merge([*ggml_readings([first, second]), nvml("0000:02:00.0", free=GIB), nvml()], RAM)
    assert [(card.devices, card.free) for card in cards] == [(("CUDA0",), 7 * GIB), (("CUDA1",), GIB)]


def test_without_addresses_the_maker_matches_them():
    seen = ggml_readings([native("SYCL0", "Intel(R) Arc(TM) A770"), native("SYCL1", "Intel(R) Arc(TM) A380")])
    kernel = [GpuReading(source="kernel", vendor="intel", pci=f"0000:0{n}:00.0") for n in (3, 4)]
    cards = merge(seen + kernel, RAM)
    assert [(card.devices, card.pci) for card in cards] == [
        (("SYCL0",), "0000:03:00.0"),
        (("SYCL1",), "0000:04:00.0"),
    ]


def test_a_slice_of_a_card_is_not_the_card():
    """With MIG llama.cpp gets a slice, and NVML speaks of the whole at the same address."""
    (slice_,) = ggml_readings([native("CUDA0", total=10 * GIB, free=9 * GIB, device_id="0000:01:00.0")])
    (card,) = merge([slice_, nvml(total=80 * GIB, free=2 * GIB)], RAM)
    assert (card.total, card.free) == (10 * GIB, 9 * GIB)


def test_a_card_that_this_build_cannot_use():
    (card,) = merge([nvml()], RAM)
    assert not card.usable
    assert DeviceProfile(read_cpu(), RAM, accelerators=(card,)).free == RAM.available


def test_memory_that_is_shared_is_bounded_by_the_ram_and_counted_once():
    seen = ggml_readings([native("Vulkan0", "Intel(R) Iris(R)", kind="igpu", total=40 * GIB, free=41 * GIB)])
    (card,) = merge(seen, RAM)
    assert card.shares_ram
    assert (card.total, card.free, card.own) == (32 * GIB, 20 * GIB, 0)
    assert DeviceProfile(read_cpu(), RAM, accelerators=(card,)).free == RAM.available


def test_memory_of_its_own_counts_on_top():
    cards = merge(ggml_readings([native("CUDA0", "NVIDIA", free=6 * GIB)]), RAM)
    assert DeviceProfile(read_cpu(), RAM, accelerators=cards).free == 26 * GIB


def test_apple():
    metal = native("MTL0", "Apple M3", total=12 * GIB, free=12 * GIB)
    system = mac_gpu(f"machdep.cpu.brand_string: Apple M3\nhw.memsize: {18 * GIB}\niogpu.wired_limit_mb: 0\n")
    (card,) = merge([*ggml_readings([metal]), system], Memory(18 * GIB, 9 * GIB))
    assert (card.vendor, card.total, card.free, card.shares_ram) == ("apple", 12 * GIB, 9 * GIB, True)
    assert mac_gpu("hw.memsize: 1\niogpu.wired_limit_mb: 20480\n").total == 20 * GIB
    assert mac_gpu(f"hw.memsize: {64 * GIB}").total == 48 * GIB
    assert mac_gpu("").total == 0
    (old,) = ggml_readings([native("MTL0", "AMD Radeon Pro 5500M")])
    assert (old.vendor, old.shares_ram) == ("amd", False)


def test_a_processor_in_disguise_is_no_gpu():
    disguised = native("Vulkan0", "llvmpipe (LLVM 17.0.6, 256 bits)")
    assert ggml_readings([disguised, native("BLAS", kind="accel")]) == []


# sysfs


def pci_device(address, vendor, kind="0x030000", **files):
    texts = {"vendor": vendor, "class": kind} | files
    return {f"sys/bus/pci/devices/{address}/{name}": f"{text}\n" for name, text in texts.items()}


def amd_memory(vram, vram_used, gtt=0, gtt_used=0):
    return {
        "mem_info_vram_total": vram,
        "mem_info_vram_used": vram_used,
        "mem_info_gtt_total": gtt,
        "mem_info_gtt_used": gtt_used,
    }


def metrics(root, address, revision):
    path = root / f"sys/bus/pci/devices/{address}/gpu_metrics"
    path.write_bytes(struct.pack("<HBB", 120, revision, 3) + bytes(116))


def test_what_the_kernel_knows(tmp_path):
    root = trees.lay(
        tmp_path,
        pci_device("0000:00:02.0", "0x8086"),
        pci_device("0000:01:00.0", "0x10de", "0x030200"),
        pci_device("0000:01:00.1", "0x10de", "0x040300"),  # the card's sound
        pci_device("0000:03:00.0", "0x8086", "0x038000"),
        pci_device("0000:04:00.0", "0x1234"),  # a virtual screen
        pci_device("0000:06:00.0", "0x8086", "0x120000"),
        pci_device("0000:07:00.0", "0x1002", product_name="Radeon RX 7800", **amd_memory(16 * GIB, 2 * GIB)),
    )
    seen = kernel_readings(root)
    assert [(card.vendor, card.pci, card.shares_ram) for card in seen] == [
        ("intel", "0000:00:02.0", True),
        ("nvidia", "0000:01:00.0", None),
        ("intel", "0000:03:00.0", False),
        ("amd", "0000:07:00.0", False),
    ]
    assert (seen[-1].name, seen[-1].total, seen[-1].free) == ("Radeon RX 7800", 16 * GIB, 14 * GIB)
    assert kernel_readings(tmp_path / "nothing") == []


@pytest.mark.parametrize(
    ("vram", "gtt", "total", "free", "own"),
    [
        (GIB // 2, 15 * GIB, 15 * GIB + GIB // 2, 15 * GIB + GIB // 2, GIB // 2),
        (GIB // 2, 120 * GIB, 32 * GIB + GIB // 2, 20 * GIB + GIB // 2, GIB // 2),  # a raised ttm.pages_limit
        (96 * GIB, 16 * GIB, 112 * GIB, 112 * GIB, 96 * GIB),  # most of the memory set aside for the GPU
    ],
)
def test_a_gpu_in_an_amd_processor(tmp_path, vram, gtt, total, free, own):
    root = trees.lay(tmp_path, pci_device("0000:c1:00.0", "0x1002", **amd_memory(vram, 0, gtt, 0)))
    metrics(root, "0000:c1:00.0", 2)
    (card,) = merge(kernel_readings(root), RAM)
    assert (card.total, card.free, card.own, card.shares_ram) == (total, free, own, True)


def test_a_card_has_metrics_too(tmp_path):
    root = trees.lay(tmp_path, pci_device("0000:03:00.0", "0x1002", **amd_memory(8 * GIB, GIB, 16 * GIB, 0)))
    metrics(root, "0000:03:00.0", 1)
    (card,) = merge(kernel_readings(root), RAM)
    assert (card.total, card.free, card.shares_ram) == (8 * GIB, 7 * GIB, False)


_sizes = st.integers(0, 2**48)
_readings = st.builds(
    GpuReading,
    source=st.sampled_from(["ggml", "nvml", "kernel", "torch"]),
    vendor=st.sampled_from(["nvidia", "amd", "intel"]),
    pci=st.sampled_from([None, "0000:01:00.0", "0000:02:00.0"]),
    total=_sizes,
    free=_sizes,
    shares_ram=st.sampled_from([None, True, False]),
    set_aside=_sizes,
    device=st.sampled_from([None, "CUDA0", "CUDA1", "Vulkan0"]),
)


@given(seen=st.lists(_readings, max_size=8))
def test_whatever_is_said_the_figures_make_sense(seen):
    cards = merge(seen, RAM)
    assert len(cards) <= len(seen)
    assert sum(len(card.devices) for card in cards) == sum(one.device is not None for one in seen)
    addresses = [card.pci for card in cards if card.pci]
    assert len(addresses) == len(set(addresses))
    for card in cards:
        assert 0 <= card.own <= card.free <= card.total
        assert not card.shares_ram or card.free <= card.own + RAM.available
