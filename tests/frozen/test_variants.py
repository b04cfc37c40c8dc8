"""One folder for every processor: llama.cpp's CPU backend lies there in variants, and the best one runs."""

import os
import shutil
from collections.abc import Callable

import pytest

from tests.frozen.program import X86, Program

WEAKEST = ("sse42",) if X86 else ("armv8.0_1", "apple_m1")
SUFFIXES = (".so", ".dll", ".dylib")

Without = Callable[[Callable[[str], bool]], Program]


def variants(program):
    """Return the CPU backends that lie in the folder, by the variant's name."""
    found = {}
    for path in sorted((program.folder / "_internal" / "llama_cpp" / "lib").iterdir()):
        name = path.stem.removeprefix("lib")
        if path.suffix in SUFFIXES and name.startswith("ggml-cpu-"):
            found[name.removeprefix("ggml-cpu-")] = path
    return found


@pytest.fixture
def without(program, tmp_path):
    """Return a maker of copies of the program in which some variants are missing; nothing else is copied."""
    made = []

    def make(hidden):
        gone = {path.name for name, path in variants(program).items() if hidden(name)}
        folder = tmp_path / "weak" / program.folder.name

        def ignore(_, names):
            return [name for name in names if name in gone]

        shutil.copytree(program.folder, folder, symlinks=True, ignore=ignore, copy_function=linked)
        made.append(Program(folder / program.path.name, tmp_path / "Heim ö 家"))
        return made[-1]

    yield make
    for copy in made:
        copy.is_gone()


def linked(source, target):
    """Give a file a second name, which costs nothing; or copy it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def features(program):
    return program.found("device", seconds=120)["llama_cpp"]["features"]


def test_there_are_variants_from_the_weakest_on(program):
    found = set(variants(program))
    assert found & set(WEAKEST)
    assert len(found) > 2
    if X86:
        assert {"sandybridge", "haswell", "alderlake", "skylakex", "icelake"} <= found


def test_the_weakest_computes_where_the_others_are_missing(program, without):
    names = [name for name in WEAKEST if name in variants(program)]
    weak = without(lambda name: name != names[0])
    assert list(variants(weak)) == [names[0]]
    fewer, all_of_them = features(weak), features(program)
    assert set(fewer) <= set(all_of_them)
    if X86:
        assert "AVX" in all_of_them
        assert not {"AVX", "AVX2", "FMA", "AVX512"} & set(fewer)
    assert "language model" in weak.said("run", "guide", "What is edgechat?", "--no-store")


def test_without_any_it_says_so(program, without):
    none = without(lambda _: True)
    assert variants(none) == {}
    said = none.complaint("run", "guide", "Hi", "--no-store")
    assert "llama.cpp has no usable backend" in said
    assert "Reinstall edgechat" in said
    found = none("doctor")
    assert found.returncode == 1
    assert "llama.cpp" in found.stdout
    for no_help in ("Traceback", "pip ", "python"):
        assert no_help not in found.stdout + found.stderr
