"""What is downloaded: one archive with one folder, which has all that belongs to a release, and is small."""

import hashlib
import shutil
import subprocess
import tarfile
import zipfile

import pytest

from edgechat import __version__

LIMIT = 120_000_000
"""Bytes of the unpacked folder."""
LARGER = ("mlx", "torch", "ggml-cuda", "ggml-vulkan", "cublas", "cudart")
"""Parts of the flavours for GPUs, to which the limit does not apply."""


@pytest.fixture(scope="module")
def archive(made):
    found = [
        path for path in made.parent.parent.glob(f"{made.parent.name}.*") if path.suffix in (".gz", ".zip")
    ]
    assert found, f"there is no archive of {made.parent.name} beside it"
    return found[0]


@pytest.fixture(scope="module")
def folder(archive, made, tmp_path_factory):
    """What is in the archive, unpacked as its owner would."""
    place = tmp_path_factory.mktemp("archive")
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            zipped.extractall(place)
    else:
        with tarfile.open(archive) as tar:
            tar.extractall(place, filter="data")
    assert [path.name for path in place.iterdir()] == [made.parent.name]
    return place / made.parent.name


def digests(folder):
    """Return the SHA-256 of every file, or where a link leads, by path."""
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_it_is_what_was_made_and_what_is_tested(folder, made):
    assert digests(folder) == digests(made.parent)


def test_its_name_says_the_version_the_system_and_the_machine(folder):
    program, version, *machine = folder.name.split("-")
    assert (program, version) == ("edgechat", __version__)
    assert len(machine) >= 2


def test_it_starts_as_unpacked(folder, made):
    run = subprocess.run(
        [folder / made.name, "--version"], capture_output=True, text=True, check=False, timeout=20
    )
    assert (run.returncode, run.stdout) == (0, f"edgechat {__version__}\n")


def test_it_has_what_belongs_to_a_release(folder):
    for name in ("README.md", "LICENSE", "LICENCES.txt"):
        assert (folder / name).stat().st_size > 500, name
    assert {path.name for path in folder.iterdir()} >= {"_internal", "completions", "man"}
    for part in ("completions", "man"):
        files = [path for path in (folder / part).rglob("*") if path.is_file()]
        assert files
        assert all(path.stat().st_size > 100 for path in files)


def test_the_licences_of_the_main_parts_are_told(folder):
    told = (folder / "LICENCES.txt").read_text(encoding="utf-8").lower()
    for part in ("llama.cpp", "textual", "numpy", "httpx2", "click", "psutil", "huggingface", "python"):
        assert part in told, part


def test_the_completions_are_for_the_shells_that_are_here(folder):
    (bash,) = [path for path in (folder / "completions").rglob("*") if "bash" in path.name]
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    subprocess.run(["bash", "-n", bash], check=True)
    loaded = subprocess.run(
        ["bash", "-c", 'source "$1" && complete -p edgechat', "bash", bash], capture_output=True, check=True
    )
    assert b"edgechat" in loaded.stdout


def test_the_manual_names_the_commands(folder):
    (page,) = (folder / "man").rglob("edgechat.1")
    text = page.read_text(encoding="utf-8")
    assert text.startswith((".TH", '.\\"', "'\\\""))
    for command in ("run", "pull", "plan", "doctor"):
        assert command in text


def test_libmtmd_is_inside(folder):
    """Pictures need it; a wheel that was built without it would go unnoticed."""
    assert [
        path for path in (folder / "_internal").rglob("*mtmd.*") if path.suffix in (".so", ".dylib", ".dll")
    ]


def test_it_is_not_larger_than_a_laptop_likes(folder):
    sizes = {
        path: path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and not any(part in str(path) for part in LARGER)
    }
    largest = sorted(sizes.items(), key=lambda one: -one[1])[:5]
    assert sum(sizes.values()) < LIMIT, largest


def test_nothing_of_the_tests_and_the_training_is_inside(folder):
    inside = {path.name.lower() for path in (folder / "_internal").iterdir()}
    assert not inside & {
        "torch",
        "matplotlib",
        "pytest",
        "hypothesis",
        "tests",
        "pip",
        "setuptools",
        "gguf",
        "mypy",
    }
