"""What a child says of a projector: its memory, to the byte where it can be read, and that it is damaged."""

import re
import subprocess
import sys
from contextlib import closing

import gguf
import numpy as np
import pytest

from edgechat.base.errors import BackendMissing, LoadFailed, ModelFileError
from edgechat.models.formats.gguf import read_header
from edgechat.native import logs
from edgechat.native.handles import Model
from edgechat.native.multimodal.probe import has_map, probe
from edgechat.native.multimodal.projector import Projector
from edgechat.native.params import LoadParams
from tests.kit import corrupt, tiny
from tests.kit.vision import KINDS, seeing

pytestmark = pytest.mark.slow

ROUNDING = 3 * 5300
"""Bytes: half of what libmtmd's log rounds to, for the weights and one or two buffers."""


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_takes(kind):
    """The account is that of a real load: its weights, and the buffers that it logs."""
    eyes, load = seeing(kind), LoadParams(context=512)
    facts = probe(eyes.projector)
    assert (facts.sees, facts.hears) == (True, False)
    logs.install()
    with closing(Model(eyes.model, load)) as model, logs.recording() as lines:
        Projector(eyes.projector, model).close()
    (compute,) = re.findall(r"compute buffer size = +([\d.]+) MiB", "".join(lines))
    weights = sum(tensor.n_bytes for tensor in read_header(eyes.projector).tensors)
    assert facts.memory["CPU"] == pytest.approx(weights + float(compute) * 2**20, abs=ROUNDING)


RESIDENT = """
import sys
from contextlib import closing
from pathlib import Path
import psutil
from edgechat.native import logs
from edgechat.native.handles import Model
from edgechat.native.multimodal.projector import Bitmap, MediaChunk
from edgechat.native.multimodal.projector import Projector
from edgechat.native.params import LoadParams
logs.install()
resident = psutil.Process().memory_info
side = int(sys.argv[3])
with closing(Model(Path(sys.argv[1]), LoadParams(context=512))) as model:
    before = resident().rss
    with closing(Projector(Path(sys.argv[2]), model)) as projector:
        with closing(Bitmap(side, side, bytes(3 * side * side))) as bitmap:
            chunks = projector.tokenize(bitmap)
        (chunk,) = (one for one in chunks if isinstance(one, MediaChunk))
        projector.encode(chunk)
        print(resident().rss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count other pages")
@pytest.mark.parametrize("kind", ["mrope", "hybrid"])
def test_what_it_really_takes(kind):
    """A tower of 8 times the channels, and the picture that libmtmd makes room for at a load."""
    eyes, side = seeing(kind, size=8), 46 * 2 * 8
    command = [sys.executable, "-c", RESIDENT, str(eyes.model), str(eyes.projector), str(side)]
    taken = int(subprocess.run(command, capture_output=True, check=True).stdout)
    planned = probe(eyes.projector).memory["CPU"]
    assert planned > 50 * 2**20
    assert taken == pytest.approx(planned, abs=32 * 2**20)


@pytest.mark.skipif(not has_map(), reason="only its log can be read here")
@pytest.mark.parametrize("kind", KINDS)
def test_its_log_says_the_same(kind):
    exact, rounded = (probe(seeing(kind).projector, portable=portable) for portable in (False, True))
    assert exact.memory.keys() == rounded.memory.keys() == {"CPU"}
    assert rounded.memory["CPU"] == pytest.approx(exact.memory["CPU"], abs=ROUNDING)


@pytest.mark.skipif(not has_map(), reason="only its log can be read here")
def test_weights_need_not_be_there(tmp_path):
    path = seeing("hybrid").projector
    header = corrupt.truncated(path, tmp_path / "header.gguf", keep=data_start(path))
    hollow = corrupt.sparse(header, tmp_path / "hollow.gguf", size=path.stat().st_size)
    assert probe(hollow) == probe(path)


def data_start(path):
    return int(min(tensor.data_offset for tensor in gguf.GGUFReader(path).tensors))


def with_number(path, out, key, number):
    """Copy a projector with another number for a key of its metadata."""
    data = path.read_bytes()
    at = data.index(key.encode()) + len(key) + 4  # behind the type
    return corrupt.patched(path, out, at=at, data=number.to_bytes(4, "little"))


@pytest.mark.parametrize(
    ("kind", "key", "number"),
    [
        ("windowed", "clip.vision.block_count", 3),
        ("windowed", "clip.vision.embedding_length", 64),
        ("windowed", "clip.vision.attention.head_count", 0),
        ("dense", "clip.vision.attention.head_count", 5),
        ("dense", "clip.vision.patch_size", 0),
        ("dense", "clip.vision.patch_size", 7),
        ("windowed", "clip.vision.image_size", 100_000),
        ("windowed", "clip.vision.image_size", 96),
        ("windowed", "clip.vision.projector.scale_factor", 0),
        ("mrope", "clip.vision.spatial_merge_size", 0),
        ("hybrid", "clip.vision.embedding_length", 0),
    ],
)
def test_numbers_that_fit_nothing(tmp_path, kind, key, number):
    """Some libmtmd refuses; at others it ends its process, which only the child is."""
    damaged = with_number(seeing(kind).projector, tmp_path / "damaged.gguf", key, number)
    with pytest.raises(LoadFailed, match=r"cannot load damaged\.gguf") as caught:
        probe(damaged)
    assert "projector" in (caught.value.hint or "")


def test_what_is_no_projector(tmp_path):
    for path in (tiny(), tmp_path / "missing.gguf"):
        with pytest.raises(LoadFailed, match="cannot load"):
            probe(path)


def test_a_build_without_libmtmd(tmp_path, monkeypatch):
    monkeypatch.setenv("MTMD_CPP_LIB", str(tmp_path))
    with pytest.raises(BackendMissing, match="supports neither images") as caught:
        probe(seeing("dense").projector)
    assert "pip install" in (caught.value.hint or "")


NUMBERS = (0, 1, 2, 3, 5, 7, 63, 64, 255, 4096, 65_535, 2**31 - 1, 2**32 - 1)


def numbers(path):
    """Return the bytes of the numbers in a header: of the metadata, and of the tensors' shapes."""
    reader = gguf.GGUFReader(path)

    def place(part):
        at = part.ctypes.data - reader.data.ctypes.data
        return range(at, at + part.nbytes)

    counts = [
        field.parts[-1] for field in reader.fields.values() if field.types[0].name in ("UINT32", "BOOL")
    ]
    sizes = [size for tensor in reader.tensors for size in np.split(tensor.field.parts[3], len(tensor.shape))]
    return [place(part) for part in counts], [place(part) for part in sizes]


def damaged_headers(tmp_path, count, seed=0):
    """Damage a number or three bytes of headers; return how many the reader and the child refused."""
    random, by_reader, by_child = np.random.default_rng(seed), 0, 0
    files = [seeing(kind).projector for kind in KINDS]
    damaged = tmp_path / "damaged.gguf"
    for index in range(count):
        path = files[index % len(files)]
        data = bytearray(path.read_bytes())
        kinds = numbers(path)
        for _ in range(3 if index % 5 == 0 else 0):
            data[int(random.integers(8, data_start(path)))] = int(random.integers(256))
        if index % 5:
            places = kinds[index % 5 == 1]
            place = places[int(random.integers(len(places)))]
            number = int(random.choice(NUMBERS)).to_bytes(8, "little")
            data[place.start : place.stop] = number[: len(place)]
        damaged.write_bytes(data)
        try:
            read_header(damaged)  # as the planner does, before anything native
        except ModelFileError:
            by_reader += 1
            continue
        try:
            probe(damaged)
        except LoadFailed:
            by_child += 1
    return by_reader, by_child


def test_damaged_headers(tmp_path):
    by_reader, by_child = damaged_headers(tmp_path, 20)
    assert by_reader
    assert by_child


@pytest.mark.soak
def test_many_damaged_headers(tmp_path):
    by_reader, by_child = damaged_headers(tmp_path, 400, seed=1)
    assert by_reader > 50
    assert by_child > 50
