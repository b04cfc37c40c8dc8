"""The catalogue and the models that are here, held against this machine at once."""

import time

import msgspec
import pytest

from edgechat.base import paths
from edgechat.base.errors import ModelFileError
from edgechat.models.choices import RemoteFile
from edgechat.models.hub.download import DownloadPace, ProgressSample, duration, speed
from edgechat.planner.estimate.calibration import Calibration
from edgechat.planner.listing import rows
from edgechat.planner.prepare import overview
from edgechat.planner.request import PlanRequest
from tests import homes
from tests.kit import tiny

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured")]


@pytest.fixture
def user(tmp_path, monkeypatch):
    homes.settle(tmp_path / "user", monkeypatch)
    return tmp_path / "user"


def test_what_is_here_has_a_speed_whoever_keeps_it(user):
    mine = homes.place(tiny(), paths.data_dir() / "models" / "mine.gguf")
    blob = homes.in_ollama(user, tiny("qwen3"), "llama3.2:3b")
    cut = homes.place(tiny(), paths.data_dir() / "models" / "cut.gguf")
    cut.write_bytes(cut.read_bytes()[:100])
    found = overview([row.model for row in rows()], PlanRequest())
    assert cut not in found.local
    assert {mine, blob} < set(found.local)
    assert all(one.predicted.decode_tps > 0 for one in found.local.values())
    assert len({one.variant.model for one in found.found.options}) == len(found.found.options) > 20
    assert found.found.machine.startswith(f"{found.profile.memory.total / 2**30:.1f} GiB of RAM")
    assert not found.has_measured(found.local[mine])
    where = found.local[mine].plan.where
    assert where is not None
    for _ in range(3):
        Calibration.read().with_run(where, decode=2.0).write()
    again = overview([row.model for row in rows()], PlanRequest())
    assert again.has_measured(again.local[mine])
    assert not again.has_measured(again.local[blob])
    assert again.local[mine].predicted.decode_tps < found.local[mine].predicted.decode_tps


def test_only_the_same_place_was_measured(user):
    homes.place(tiny(), paths.data_dir() / "models" / "mine.gguf")
    found = overview([row.model for row in rows()], PlanRequest())
    where = next(one.plan.where for one in found.local.values() if one.plan is not None)
    assert where is not None
    other = msgspec.structs.replace(where, quant="Q2_K")
    known = Calibration()
    for _ in range(3):
        known = known.with_run(other, decode=1.0).with_run(where, prefill=1.0)
    assert known.knows(other)
    assert not known.knows(where)


def test_a_damaged_file_is_left_out(user, monkeypatch):
    mine = homes.place(tiny(), paths.data_dir() / "models" / "mine.gguf")
    models = [row.model for row in rows()]

    def damaged(path):
        raise ModelFileError(f"{path} is odd.")

    monkeypatch.setattr("edgechat.planner.candidates.read_model", damaged)
    assert mine not in overview(models, PlanRequest()).local


def test_the_pace_of_a_download(monkeypatch):
    clock = [5.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    one, two = (RemoteFile(name, 100 << 20, "0" * 64) for name in "ab")
    pace = DownloadPace(200 << 20)
    assert pace.standing() == ProgressSample(0, 200 << 20)
    pace.has(one, 50 << 20)  # was here
    for step in range(1, 6):
        clock[0] += 1
        pace.has(one, (50 + 10 * step) << 20)
    found = pace.standing()
    assert found.share == 0.5
    assert found.left == pytest.approx(10)
    assert found.line == "50% 100 MiB of 200 MiB, 10.0 MiB/s, 0:10 left"
    pace.has(two, 100 << 20)
    assert pace.standing().size == "100% 200 MiB of 200 MiB"
    assert ProgressSample(0, 0).share == 1.0
    assert ProgressSample(5 << 20, 10 << 20).line == "50% 5 MiB of 10 MiB"
    assert (speed(2000.0), duration(3661), duration(1e12)) == ("2 KiB/s", "1:01:01", "99:59:59")
