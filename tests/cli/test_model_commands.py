"""`edgechat list`, `show`, `rm`, `import` and `verify` in homes where other tools left models."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgechat.base import paths
from edgechat.cli.commands import models, plan, show
from edgechat.models.formats.gguf import read_header
from edgechat.models.local import upkeep
from edgechat.models.local.inventory import inventory
from edgechat.planner import listing as planner_listing
from tests import homes
from tests.cli import worlds
from tests.cli.running import EDGECHAT, edgechat
from tests.cli.transcripts import transcript
from tests.kit import NOT_PRINTABLE, Spec, tiny
from tests.kit.adapters import adapter
from tests.kit.build import write
from tests.kit.heads import with_head
from tests.kit.projector_files import projector
from tests.kit.shapes import Tensor
from tests.terminal import Terminal, needs_tmux

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured", "user")]

QWEN = "unsloth/Qwen3-4B-Instruct-2507-GGUF"
FILE = "Qwen3-4B-Instruct-2507-Q4_K_M.gguf"


@pytest.fixture(scope="module")
def model():
    return tiny("dense", mute=NOT_PRINTABLE)


@pytest.fixture(scope="module")
def other():
    return tiny("qwen3")


def said(*words):
    run = edgechat(*words)
    assert (run.returncode, run.stderr) == (0, ""), run
    return run.stdout


def refusal(*words):
    run = edgechat(*words)
    assert run.returncode == 1, run
    assert run.stderr.startswith("error: ")
    assert "Traceback" not in run.stderr
    return run.stderr


def own(name):
    return paths.data_dir() / "models" / name


def listed():
    return {one["name"]: one for one in json.loads(said("list", "--json"))}


def split(world, name):
    """Write a model in several files."""
    write(Spec(), world.folder / name, split_max_tensors=10)


def scan(world, name):
    """Write down what huggingface_hub itself finds in its cache, which it must not find fault with."""
    code = (
        "from huggingface_hub import scan_cache_dir\nfound = scan_cache_dir()\nassert not found.warnings\n"
        "print(*[f.file_name for r in found.repos for v in r.revisions for f in v.files])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    worlds.file(world, name, run.stdout)


test_what_is_printed = transcript("models.txt", split, scan)


@pytest.mark.parametrize(
    "words", ["list", "show moe", "show headed", "show eyes", "plan headed", "plan eyes"]
)
def test_the_fields_of_objects_are_documented(words):
    for name, file in (("moe", tiny("moe")), ("headed", with_head("qwen35")), ("eyes", tiny())):
        homes.place(file, own(f"{name}.gguf"))
    homes.place(projector(), own("mmproj-eyes-F16.gguf"))
    command, *name = words.split()
    found = json.loads(said(command, *name, "--json"))
    first = found[0] if isinstance(found, list) else found
    documented = {"list": models, "show": show, "plan": plan}[command].__doc__
    if command == "plan":
        first = {*first, *(first["mtp"] or ()), *(first["projector"] or ())}
    assert set(first) <= set(re.findall(r"\b[a-z_]+\b", documented.partition("--json")[2]))


@pytest.mark.parametrize("name", ["../evil", "a/b", ".hidden", "", "a\x1bb", "x" * 300, "c:evil"])
def test_names_that_cannot_be(model, tmp_path, name):
    path = homes.place(model, tmp_path / "loose.gguf")
    assert "is not a valid name for a model" in refusal("import", path, "--name", name)


# list


def test_a_header_is_read_once(user, model, monkeypatch):
    path = homes.place(model, own("mine.gguf"))
    (mine,) = [one for one in inventory().models if one.name == "mine"]
    read = []
    first = planner_listing.glances([mine], read.append)
    assert first[0].architecture == "llama"
    assert planner_listing.glances([mine], read.append) == first
    assert read == ["mine"]
    os.utime(path, (1, 1))
    (mine,) = [one for one in inventory().models if one.name == "mine"]
    assert planner_listing.glances([mine], read.append) == first
    assert read == ["mine", "mine"]
    for damage in (b"", b"\x93\x01", b"\xff" * 99, os.urandom(4096)):
        (paths.cache_dir() / "glances.bin").write_bytes(damage)
        assert planner_listing.glances([mine], read.append) == first
    monkeypatch.setattr(planner_listing, "MAX_MODELS", 1)
    paths.cache_dir().joinpath("glances.bin").unlink()
    planner_listing.glances(inventory().models)
    assert len(planner_listing._read()) == 1


def test_what_fits_is_what_the_planner_says(user, other):
    homes.place(other, own("mine.gguf"))
    (mine,) = [one for one in inventory().models if one.name == "mine"]
    (seen,) = planner_listing.glances([mine])
    longest, needed = seen.needs[0]
    assert seen.fits(2 * needed) == longest
    shortest, least = seen.needs[-1]
    assert seen.fits(least) == shortest
    assert seen.fits(least - 1) == 0
    made = json.loads(said("plan", "mine", "--json"))
    estimate = dict(seen.needs)[made["context"]]
    exact = sum(one["total_bytes"] for one in made["devices"])
    assert 0.7 * exact < estimate < 1.3 * exact


@pytest.mark.soak
def test_two_hundred_models(user, model, capsys):
    """Measured, not asserted: the first listing reads the headers, the second does not."""
    for number in range(50):
        homes.in_hub(user, tiny("dense", seed=number + 1), f"them/M{number}-GGUF", f"M{number}-Q4_0.gguf")
        homes.in_lm_studio(user, model, f"them/S{number}-GGUF/S{number}-Q4_0.gguf")
        homes.in_ollama(user, model, f"o{number}:1b", host="registry.ollama.ai/them")
        homes.place(model, own(f"own{number}.gguf"))
        upkeep.note_use(str(own(f"own{number}.gguf")))
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        run = edgechat("list")
        seconds.append(time.perf_counter() - began)
        assert run.returncode == 0
    began = time.perf_counter()
    models.list_models.callback(json=False)
    inside = time.perf_counter() - began
    n = len(capsys.readouterr().out.splitlines()) - 1
    began = time.perf_counter()
    edgechat("rm", "--help")
    start = time.perf_counter() - began
    with capsys.disabled():
        print(f"\n{n} models listed in {seconds[0]:.2f} s, again in {min(seconds[1:]):.2f} s;", end=" ")
        print(f"in the program {inside:.3f} s; starting it takes {start:.2f} s")


# What was used last


def test_records_of_use_that_are_damaged(user, model):
    path = homes.place(model, own("mine.gguf"))
    upkeep.note_use(str(path))
    (record,) = (paths.data_dir() / "used").iterdir()
    assert upkeep.uses()[str(path)].is_loaded  # by this process
    for damage in ("", "[" * 5000, "{}", '{"path": 1, "when": "x"}'):
        record.write_text(damage)
        assert upkeep.uses() == {}
    upkeep.note_use(str(path))
    assert upkeep.use_of(path) is not None


def test_records_of_use_do_not_pile_up(user, monkeypatch):
    monkeypatch.setattr(upkeep, "MOST_REMEMBERED", 3)
    for number in range(6):
        upkeep.note_use(f"/models/{number}.gguf")
    assert len(upkeep.uses()) == 3


# Names, everywhere


@pytest.mark.values
@pytest.mark.parametrize("command", ["show", "rm", "verify", "import"])
@pytest.mark.parametrize("name", ["nowhere", "", "a/../../nowhere", "x" * 3000, "\x1b[31m"])
def test_names_that_mean_nothing(user, command, name):
    assert "\x1b" not in refusal(command, name)


# show


# rm


@needs_tmux
def test_removing_in_a_terminal(user, model, tmp_path):
    with Terminal(tmp_path / "terminal") as terminal:
        path = homes.place(model, terminal.home / "data/models/mine.gguf")
        terminal.run([*EDGECHAT, "rm", "mine"])
        terminal.until("Remove it? [y/N]")
        terminal.ask("n")
        terminal.until("left with 1")
        assert path.exists()
        terminal.run([*EDGECHAT, "rm", "mine"])
        terminal.until(lambda: terminal.screen.count("Remove it?") == 2)
        terminal.ask("y")
        terminal.until("left with 0")
        assert not path.exists()


def test_a_model_that_is_loaded_is_not_removed(user, model):
    path = homes.place(model, own("mine.gguf"))
    command = [*EDGECHAT, "run", "mine", "Tell me a long story.", "--max-tokens", "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as running:
        assert running.stdout is not None
        running.stdout.read(1)  # it is answering
        try:
            assert listed()["mine"]["loaded"] is True
            assert "loaded by a running edgechat" in refusal("rm", "mine", "--yes")
        finally:
            running.kill()
    assert path.exists()
    deadline = time.monotonic() + 10
    while listed()["mine"]["loaded"] and time.monotonic() < deadline:
        time.sleep(0.1)
    said("rm", "mine", "--yes")


# import


def shares(text, one, other):
    """Return whether an import told that two files share their bytes, and they do."""
    if "shares disk space" in text:  # a clone: each can be changed without the other
        return one.read_bytes() == other.read_bytes()
    return "is a hard link" in text and one.samefile(other)


def test_a_file_is_imported_without_a_copy(user, model, tmp_path):
    path = homes.place(model, tmp_path / "loose.gguf")
    text = said("import", path)
    assert "edgechat run loose" in text
    assert shares(text, own("loose.gguf"), path)
    assert listed()["loose"]["place"] == "own folder"
    assert "with that name already" in refusal("import", path)
    assert "is already in edgechat's folder" in refusal("import", "loose")
    said("import", path, "--name", "another")
    assert {"loose", "another"} <= set(listed())
    assert sorted(file.name for file in own("x").parent.iterdir()) == ["another.gguf", "loose.gguf"]


def test_every_command_takes_every_tag_of_ollama(user, model):
    homes.in_ollama(user, model, "fake:8b")
    homes.in_ollama(user, model, "fake")
    assert listed()["ollama/fake:8b"]["other_names"] == ["fake:latest"]
    assert said("list").count("fake") == 2
    assert "ollama/fake:8b (fake:latest)" in said("list")
    for name in ("fake", "fake:8b", "fake:latest", "ollama/fake"):
        assert edgechat("run", name, "hi", "--max-tokens", "2").returncode == 0
        assert json.loads(said("show", name, "--json"))["name"] == "ollama/fake:8b"
        assert json.loads(said("plan", name, "--json"))["model"] == "ollama/fake:8b"
        assert "ollama rm fake:8b; ollama rm fake:latest" in refusal("rm", name, "--yes")


LLAMA = "{{ .System }}<|start_header_id|>user<|end_header_id|>\n\n{{ .Prompt }}<|eot_id|>"


def turn(role, text):
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>"


def test_what_ollama_keeps_beside_a_model_are_its_defaults(user):
    plain = tiny("dense", mute=NOT_PRINTABLE, chat_template=None)
    params = {"temperature": 0, "num_ctx": 512, "mirostat": 2}
    layers = {"params": params, "system": "Be brief.", "template": LLAMA}
    homes.in_ollama(user, plain, "fake:8b", **layers)
    homes.in_ollama(user, plain, "fake", **layers)
    homes.in_ollama(
        user, plain, "other", params={"temperature": 0, "num_ctx": 1 << 20}, template="{{ .Prompt }}"
    )

    def ask(*words):
        run = edgechat("run", *words, "--max-tokens", "30", "--json")
        assert run.returncode == 0, run
        return json.loads(run.stdout)

    whole = ask("fake", "hi")
    asked = turn("user", "hi") + "<|start_header_id|>assistant<|end_header_id|>\n\n"
    assert whole["usage"]["prompt_tokens"] == len(turn("system", "Be brief.") + asked)
    assert whole["plan"]["context"] == 512
    assert ask("fake", "hi")["text"] == whole["text"]
    # What the user says counts.
    mine = ask("fake:8b", "hi", "--system", "Sing.", "--ctx", "1024", "--temperature", "1.5", "--seed", "3")
    assert mine["usage"]["prompt_tokens"] == len(turn("system", "Sing.") + asked)
    assert mine["plan"]["context"] == 1024
    assert mine["text"] != whole["text"]
    # Another tag of the same file has its own.
    other = ask("other", "hi")
    assert other["usage"]["prompt_tokens"] == len(
        "1user\nhi2\n1assistant\n"
    )  # ChatML: marks are a token each
    assert other["plan"]["context"] > 512
    stopped = params | {"stop": [whole["text"][4:6]]}
    homes.in_ollama(user, plain, "stops", **layers | {"params": stopped})
    assert ask("stops", "hi")["text"] == whole["text"][: whole["text"].index(whole["text"][4:6])]
    shown = said("show", "fake")
    for part in ("none; the Llama 3 format", "temperature 0, context 512", "Be brief.", "mirostat"):
        assert part in shown
    assert "Ollama's template for this model is ignored" in said("show", "other")
    assert "Do what you want." in shown
    assert json.loads(said("show", "stops", "--json"))["defaults"]["stop"] == stopped["stop"]
    assert "Ollama's parameters" in said("plan", "fake")


def test_an_adapter_that_ollama_keeps_beside_a_model_is_applied(user, model, tmp_path):
    file = adapter(tmp_path, Spec(mute=NOT_PRINTABLE))
    params = {"temperature": 0}
    homes.in_ollama(user, model, "tuned", params=params, adapter=file.read_bytes())
    homes.in_ollama(user, model, "odd", params=params, adapter=b"GGUF no adapter")
    homes.in_ollama(user, model, "plain", params=params)
    words = ("hi", "--max-tokens", "20")
    plain = said_by("plain", *words)
    assert said_by("tuned", *words) == said_by(model, *words, "--temperature", "0", "--lora", file) != plain
    assert said_by("odd", *words) == plain
    assert json.loads(said("plan", "tuned", "--json"))["adapters"][0]["rank"] == 4
    assert "is not applied" in said("plan", "odd")


def test_a_file_with_a_vision_tower_inside_is_told_and_imported_for_text(user, model, tmp_path):
    spec, tower = Spec(mute=NOT_PRINTABLE), ("v.blk.0.attn_q.weight", "mm.0.weight", "a.conv1d.1.weight")
    write(spec, tmp_path / "all.gguf", beside=[Tensor(name, (64, 32), 1.0) for name in tower])
    homes.in_ollama(user, tmp_path / "all.gguf", "sees:4b")
    row = listed()["ollama/sees:4b"]
    assert (row["can_import"], row["fits"]) == (True, False)
    assert "contains a vision tower (24 KiB)" in row["damage"]
    assert "to import" in said("list")
    for words in (
        ("plan", "sees:4b"),
        ("show", "sees:4b"),
        ("run", "sees:4b", "hi"),
        ("run", row["path"], "hi"),
    ):
        assert "edgechat import MODEL" in refusal(*words)
    assert "hashes match" in said("verify", "sees:4b")
    assert "Only part of" in refusal("import", "sees:4b", "--move")
    assert "edgechat run sees-4b" in said("import", "sees:4b")
    text, whole = read_header(own("sees-4b.gguf")), read_header(Path(row["path"]))
    assert {tensor.name for tensor in whole.tensors} - {tensor.name for tensor in text.tensors} == set(tower)
    assert text.metadata == whole.metadata
    assert [file.name for file in own("x").parent.iterdir()] == ["sees-4b.gguf"]
    words = ("hi", "--max-tokens", "20", "--temperature", "0")
    assert said_by("sees-4b", *words) == said_by(model, *words)
    assert "exists" in refusal("import", "sees:4b")


@pytest.mark.parametrize(
    "names", [("part1of3", "part2of3", "part3of3"), ("-split-a", "-split-b", "-split-c")]
)
def test_parts_of_a_model_that_was_split_by_bytes_are_joined(user, model, tmp_path, names):
    data = model.read_bytes()
    cuts = (0, 1000, len(data) // 2, len(data))  # the first ends amid the header
    paths = [tmp_path / f"m.gguf{'' if name.startswith('-') else '.'}{name}" for name in names]
    for at, path in enumerate(paths):
        path.write_bytes(data[cuts[at] : cuts[at + 1]])
    for at, path in enumerate(paths):
        told = refusal("run", path, "hi")
        assert f"is part {at + 1} of 3 of m.gguf" in told
        assert "all parts are present" in told
        assert f"edgechat import {path}" in told
        assert told == refusal("plan", path)
    paths[1].rename(tmp_path / "away")
    for command in ("plan", "import"):
        assert f"Missing: {paths[1].name}" in refusal(command, paths[0])
    (tmp_path / "away").rename(paths[1])
    assert "edgechat run m" in said("import", paths[1])
    assert own("m.gguf").read_bytes() == data
    assert "exists" in refusal("import", paths[0])
    assert all(path.exists() for path in paths)
    said("import", paths[0], "--name", "moved", "--move")
    assert own("moved.gguf").read_bytes() == data
    assert not any(path.exists() for path in paths)
    assert said_by("m", "hi", "--max-tokens", "5", "--temperature", "0")


def test_parts_that_are_no_model_are_not_joined(user, model, tmp_path):
    data = model.read_bytes()
    for number, part in ((1, data[:9000]), (2, data[9000:-1])):
        (tmp_path / f"m.gguf.part{number}of2").write_bytes(part)
    assert "truncated" in refusal("import", tmp_path / "m.gguf.part1of2")
    (tmp_path / "x.gguf.part1of1").write_bytes(b"no model")
    assert "is not a GGUF file" in refusal("import", tmp_path / "x.gguf.part1of1")
    (tmp_path / "y.gguf.part3of2").write_bytes(data)
    assert "is part" not in edgechat("run", tmp_path / "y.gguf.part3of2", "hi").stderr
    assert not own("x").parent.exists() or not list(own("x").parent.iterdir())


def said_by(*words):
    run = edgechat("run", *words)
    assert run.returncode == 0, run
    return run.stdout


def test_what_other_tools_keep_is_imported_by_its_name_and_never_moved(user, model):
    blob = homes.in_ollama(user, model, "llama3.2:3b")
    assert "cannot be moved" in refusal("import", "ollama/llama3.2:3b", "--move")
    assert shares(said("import", "ollama/llama3.2:3b", "--name", "mine"), own("mine.gguf"), blob)
    assert blob.exists()


def test_where_links_cannot_be_made_it_is_copied(user, model, tmp_path, monkeypatch):
    from edgechat.base.errors import NotImported
    from edgechat.models.local import importing

    path = homes.place(model, tmp_path / "loose.gguf")
    monkeypatch.setattr(importing, "_hard_linked", lambda source, target: False)
    monkeypatch.setattr(importing, "_cloned", lambda source, target: False)
    told = []
    found = importing.import_model(str(path), on_progress=lambda n, total: told.append((n, total)))
    assert (found.how, told[-1]) == ("copied", (path.stat().st_size,) * 2)
    assert found.path.read_bytes() == path.read_bytes()
    monkeypatch.setattr(importing, "RESERVE", 1 << 60)
    with pytest.raises(NotImported, match="free"):
        importing.import_model(str(path), name="second", on_progress=lambda n, total: None)
    assert [file.name for file in found.path.parent.iterdir()] == ["loose.gguf"]


# verify


def test_doctor_notes_a_folder_that_may_not_be_read(user, monkeypatch):
    from edgechat.cli import findings
    from edgechat.models.local.inventory import Inventory

    monkeypatch.setattr(findings, "inventory", lambda: Inventory((), {Path("/x"): "Permission denied"}))
    (finding,) = [one for one in findings.own_findings() if "cannot be read" in one.what]
    assert finding.what == "The models in /x cannot be read: Permission denied."
    assert not finding.weight
