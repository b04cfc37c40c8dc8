"""Fixtures for the smoke test of the frozen program.

    make smoke                                                                 builds the program and tests it
    pytest tests/frozen --program dist/edgechat-0.1.0-linux-x86_64/edgechat    tests an existing one

Without --program all tests here are skipped, since a checkout contains no frozen program.
"""

import shutil
import sys
from pathlib import Path

import pytest

from tests.frozen.program import Program, inside
from tests.kit import DENSE, N_BYTES_VOCAB, Spec, build

ODD = "Ein Ordner ü 模型"


def pytest_addoption(parser):
    parser.addoption("--program", metavar="PATH", help="the executable of the frozen program's folder")


@pytest.fixture(scope="session")
def made(pytestconfig):
    """Return the executable as built, in its folder and next to its archive."""
    given = pytestconfig.getoption("--program", None)  # pytest only knows the option if this folder is named
    if given is None:
        pytest.skip("no --program was given; `make smoke` makes one and tries it")
    path = Path(given).absolute()
    if not path.is_file():
        pytest.fail(f"--program: there is no {path}")
    return path


@pytest.fixture(scope="session")
def unpacked(made, tmp_path_factory):
    """Return a copy of the executable, in a folder that has an odd path and is read-only."""
    folder = tmp_path_factory.mktemp("frozen") / ODD / made.parent.name
    shutil.copytree(made.parent, folder, symlinks=True)
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink() and sys.platform != "win32":
            path.chmod(path.stat().st_mode & 0o555)
    return folder / made.name


@pytest.fixture(scope="session")
def program(unpacked, tmp_path_factory):
    """Return the program, with a home that all tests share."""
    return Program(unpacked, tmp_path_factory.mktemp("home") / "Heim ö 家")


@pytest.fixture
def newcomer(unpacked, tmp_path):
    """Return the program, with a home in which it has never run."""
    return Program(unpacked, tmp_path / "Heim ö 家")


@pytest.fixture(autouse=True)
def nothing_is_left(unpacked, program, tmp_path):
    """Check that no test leaves a process, a temporary file, or anything in the program's folder."""
    before = inside(unpacked.parent)
    yield
    program.is_gone()
    assert inside(unpacked.parent) == before
    for home in (program.home, tmp_path / "Heim ö 家"):
        assert not list(home.glob("temporary/*"))


@pytest.fixture(scope="session")
def slow(tmp_path_factory):
    """Return a model that answers slowly, with endless letters."""
    shape = DENSE.sized(n_layers=8, n_embd=512, n_ff=2048, n_heads=8, n_kv_heads=8)
    mute = tuple(set(range(N_BYTES_VOCAB)) - set(b"abcdefghijklmnopqrstuvwxyz"))
    made = build(Spec(shape=shape, weights="Q8_0", mute=mute, name="letters"))
    return Path(shutil.copy(made, tmp_path_factory.mktemp("model") / "Modell ü.gguf"))
