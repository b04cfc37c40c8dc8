import pytest
from msgspec.structs import replace

from edgechat.base import paths
from edgechat.device.cpu import Core, Cpu, choose_threads
from edgechat.device.speed import DeviceSpeed, ThreadTrial, best_threads, cached_speed, store_speed

SPEED = DeviceSpeed(
    bandwidth=1e10, kernels={"Q4_K": (1e-11,) * 7}, attention=(1e-11,) * 7, threads=2, measured=1.0
)


def cpu(name="A processor", cores=2, *, smt=1, quota=None):
    threads = [tuple(range(smt * core, smt * (core + 1))) for core in range(cores)]
    return Cpu(name, tuple(map(Core, threads)), frozenset(range(smt * cores)), quota)


def test_another_processor_is_not_known():
    store_speed(SPEED, cpu())
    store_speed(replace(SPEED, threads=4), cpu(cores=4))
    assert cached_speed(cpu()) == SPEED
    assert cached_speed(cpu(cores=4)) == replace(SPEED, threads=4)
    assert cached_speed(cpu(cores=8)) is None
    assert cached_speed(cpu("Another one")) is None
    assert cached_speed(cpu(quota=1.5)) is None


def test_accelerators_are_stored_beside_it():
    store_speed(SPEED, cpu())
    store_speed(replace(SPEED, bandwidth=1e12), cpu(), "CUDA0, A card, 8.0 GiB")
    assert cached_speed(cpu()) == SPEED
    assert cached_speed(cpu(), "CUDA0, A card, 8.0 GiB") == replace(SPEED, bandwidth=1e12)
    assert cached_speed(cpu(), "CUDA1, A card, 8.0 GiB") is None


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "\0", '{"a": {"bandwidth": "x"}}', "[" * 10_000])
def test_a_damaged_cache_is_only_measured_anew(text):
    (paths.cache_dir() / "speed.json").write_text(text)
    assert cached_speed(cpu()) is None
    store_speed(SPEED, cpu())
    assert cached_speed(cpu()) == SPEED


@pytest.mark.parametrize(
    "changed",
    [
        {"bandwidth": 0.0},
        {"kernels": {"Q4_K": (0.0,) * 7}},
        {"kernels": {"Q4_K": (1e-11,)}},
        {"attention": (float("inf"),) * 7},
        {"layer": -1.0},
        {"threads": 0},
    ],
)
def test_figures_that_make_no_sense_are_not_believed(changed):
    store_speed(replace(SPEED, **changed), cpu())
    assert cached_speed(cpu()) is None


def test_a_cache_folder_that_cannot_be_made(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGECHAT_HOME", str(tmp_path / "file"))
    store_speed(SPEED, cpu())
    assert cached_speed(cpu()) is None


def test_threads_are_as_measured():
    hyper = cpu(cores=4, smt=2)
    trials = (ThreadTrial(4, 2.0, 2.0), ThreadTrial(8, 1.0, 1.0))
    count, why = best_threads(hyper, replace(SPEED, threads=8, trials=trials))
    assert count == 8
    assert why == (
        "8 threads, one for each hardware thread: as measured on this machine, "
        "4 (one for each core) take 2.00 times as long."
    )
    slower = (ThreadTrial(4, 1.0, 1.0), ThreadTrial(8, 1.5, 1.5))
    count, why = best_threads(hyper, replace(SPEED, threads=4, trials=slower))
    assert (count, "8 (one for each hardware thread) take 1.50 times as long" in why) == (4, True)


def test_threads_that_were_not_compared_are_chosen_by_the_cores():
    hyper = cpu(cores=4, smt=2)
    for speed in (None, SPEED, replace(SPEED, trials=(ThreadTrial(4, 1.0, 1.0),))):
        assert best_threads(hyper, speed) == choose_threads(hyper)
