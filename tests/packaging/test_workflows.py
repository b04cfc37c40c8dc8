"""The workflows cannot run here; but what they name has to exist, and they have to agree with each other."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "workflows"
FILES = sorted(FOLDER.glob("*.yml"))
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in FILES}
WORKFLOWS = {name: yaml.safe_load(text) for name, text in TEXTS.items()}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
each_file = pytest.mark.parametrize("name", TEXTS)


def jobs(name):
    return WORKFLOWS[name]["jobs"]


def scripts(name):
    """Every script of a workflow, with the system's own slashes."""
    for job in jobs(name).values():
        for step in job.get("steps", []):
            yield step.get("run", "").replace("\\", "/")


def recipe(target):
    """Return the commands of one of the Makefile's targets, without the environment's folder."""
    block = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert block is not None, target
    return [line.strip().removeprefix("$(BIN)/") for line in block.group(1).splitlines()]


def test_there_are_those_that_are_told_of():
    assert set(TEXTS) == {"ci.yml", "package.yml", "release.yml"}


@each_file
def test_actions_are_pinned_by_commit_and_called_by_version(name):
    lines = re.findall(r"uses: (.+)", TEXTS[name])
    assert len(lines) >= 5
    for line in lines:
        if line.startswith("./"):
            assert (ROOT / line).is_file(), line
        else:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_the_same_action_is_the_same_everywhere():
    used = {line for text in TEXTS.values() for line in re.findall(r"uses: ([\w-]+/.+)", text)}
    assert len({line.split("@")[0] for line in used}) == len(used), sorted(used)


def test_images_are_pinned_by_digest():
    images = re.findall(r"container: (\S+/\S+)", TEXTS["release.yml"])
    assert images
    assert [image for image in images if not re.search(r":[\d.-]+@sha256:[0-9a-f]{64}$", image)] == []


@each_file
def test_jobs_may_little_and_end(name):
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    checkouts = 0
    for job, settings in jobs(name).items():
        assert "uses" in settings or settings["timeout-minutes"], job
        for step in settings.get("steps", []):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, job
                checkouts += 1
    assert checkouts


@each_file
def test_make_knows_the_targets(name):
    found = [re.findall(r"\bmake ([a-z-]+)\b", code(script)) for script in scripts(name)]
    targets = {target for targets in found for target in targets}
    assert targets <= set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    if name != "release.yml":
        assert targets, "the pattern finds none any more"


def code(script):
    """Return a script without its comments."""
    return re.sub(r"^\s*#.*$", "", script, flags=re.MULTILINE)


@each_file
def test_files_exist(name):
    named = {
        path
        for script in scripts(name)
        for path in re.findall(r"(?:packaging|tests)/[\w/.-]+(?:::\w+)?", code(script))
    }
    assert named
    for path in named:
        file, _, test = path.partition("::")
        assert (ROOT / file).exists(), path
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8") if test else True, path


def test_windows_checks_what_make_checks():
    ours = [step.get("run", "") for step in jobs("ci.yml")["windows"]["steps"]]
    assert set(recipe("check")) <= set(ours)


def test_the_documentation_is_built_as_make_does():
    run = [step.get("run", "") for step in jobs("ci.yml")["docs"]["steps"]]
    assert set(recipe("docs")) <= set(run)
    needed = {re.split(r"[<>=]", need)[0] for need in PROJECT["optional-dependencies"]["docs"]}
    installed = next(command for command in run if "pip install" in command)
    assert needed <= set(installed.split())


def test_the_oldest_python_is_tried():
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert oldest in jobs("ci.yml")["test"]["strategy"]["matrix"]["python"]


@each_file
def test_extras_exist(name):
    extras = {extra for script in scripts(name) for extra in re.findall(r"'\.\[(\w+)\]'", script)}
    assert extras <= set(PROJECT["optional-dependencies"])


def test_the_program_is_tried_with_what_the_container_can_install():
    """MLX has no wheel for its glibc, and is among what edgechat is developed with."""
    text = "".join(scripts("package.yml"))
    assert "pytest -q tests/frozen --program" in text
    assert "make smoke" not in code(text)
    extras = set(re.findall(r"'\.\[(\w+)\]'", text))
    assert extras == {"package", "test"}
    needed = [need for extra in extras for need in PROJECT["optional-dependencies"][extra]]
    assert [need for need in needed if re.match(r"(mlx|edgechat\b)", need)] == []


@pytest.mark.parametrize("caller", ["ci.yml", "release.yml"])
def test_packaging_is_called_as_it_says(caller):
    # YAML 1.1 reads `on` as true.
    called = WORKFLOWS["package.yml"][True]["workflow_call"]
    call = jobs(caller)["package"]
    required = {name for name, options in called["inputs"].items() if options.get("required")}
    assert required <= set(call["with"]) <= set(called["inputs"])
    assert set(call.get("secrets", {})) <= set(called["secrets"])
    rows = call["strategy"]["matrix"]["include"]
    asked = set(re.findall(r"matrix\.(\w+)", str(call["with"])))
    for row in rows:
        assert asked <= set(row), row


def test_all_that_packaging_is_given_is_used():
    called = WORKFLOWS["package.yml"][True]["workflow_call"]
    for kind in ("inputs", "secrets"):
        for name in called[kind]:
            assert f"{kind}.{name}" in TEXTS["package.yml"], name


def released():
    return jobs("release.yml")["package"]["strategy"]["matrix"]["include"]


def test_archives_are_those_of_the_documentation():
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    told = re.findall(r"`edgechat-VERSION-([\w-]+)\.(?:tar\.gz|zip)`", page)
    assert sorted(told) == sorted(row["archive"] for row in released())


def test_flavours_are_those_that_can_be_built(binary):
    for row in released():
        assert row["flavour"] in binary.FLAVOURS
        ending = "" if row["flavour"] in ("cpu", "metal") else f"-{row['flavour']}"
        assert re.fullmatch(rf"(linux|macos|windows)-(x86_64|arm64){ending}", row["archive"])


@pytest.fixture
def binary():
    """The module `llama`, which lies outside the package."""
    sys.path.insert(0, str(ROOT / "packaging" / "binary"))
    try:
        import llama
    finally:
        sys.path.remove(str(ROOT / "packaging" / "binary"))
    return llama


def test_archives_that_are_tried_elsewhere_are_made():
    """`runner.os` and `runner.arch` are in the name under which package.yml leaves them."""
    assert "name: archive-${{ runner.os }}-${{ runner.arch }}-${{ inputs.flavour }}" in TEXTS["package.yml"]
    kinds = {"ubuntu-24.04": "Linux-X64", "ubuntu-24.04-arm": "Linux-ARM64"}
    linux = [row for row in released() if row["runner"] in kinds]
    made = {f"archive-{kinds[row['runner']]}-{row['flavour']}" for row in linux}
    taken = {row["artifact"] for row in jobs("release.yml")["elsewhere"]["strategy"]["matrix"]["include"]}
    assert taken <= made


def test_nothing_is_published_but_from_a_tag():
    allowed = {job: settings.get("permissions", {}) for job, settings in jobs("release.yml").items()}
    publishing = [job for job, permissions in allowed.items() if "write" in permissions.values()]
    assert publishing == ["draft", "pypi"]
    for job in publishing:
        assert jobs("release.yml")[job]["if"] == "github.event_name == 'push' && github.ref_type == 'tag'"
