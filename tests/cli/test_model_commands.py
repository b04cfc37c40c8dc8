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
from edgechat.cli.commands import listing, show
from edgechat.models.local import usage
from edgechat.models.local.inventory import inventory
from edgechat.planner import listing as planner_listing
from tests import homes
from tests.cli.running import EDGECHAT, edgechat
from tests.kit import NOT_PRINTABLE, Spec, tiny
from tests.kit.build import write
from tests.terminal import Terminal, needs_tmux

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured")]

QWEN = "unsloth/Qwen3-4B-Instruct-2507-GGUF"
FILE = "Qwen3-4B-Instruct-2507-Q4_K_M.gguf"


@pytest.fixture(scope="module")
def model():
    return tiny("dense", mute=NOT_PRINTABLE)


@pytest.fixture(scope="module")
def other():
    return tiny("qwen3")


@pytest.fixture
def user(tmp_path, monkeypatch):
    homes.settle(tmp_path / "user", monkeypatch)
    return tmp_path / "user"


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


# list


def test_the_list_for_people(user, model):
    homes.place(model, own("mine-F32.gguf"))
    homes.in_ollama(user, model, "llama3.2:3b")
    lines = said("list").splitlines()
    assert lines[0].split() == ["NAME", "QUANT", "SIZE", "CONTEXT", "LAST", "USED", "FITS", "NOW", "WHERE"]
    assert re.fullmatch(r"guide +Q\d_0 +\d MiB +2048 +yes +edgechat", lines[1])
    assert re.fullmatch(r"mine-F32 +F32 +\d+ [KM]iB +\d+ +yes +own folder", lines[2])
    assert re.fullmatch(r"ollama/llama3.2:3b +F32 +\d+ [KM]iB +\d+ +yes +Ollama", lines[3])


def test_the_list_for_programs(user, model):
    link = homes.in_hub(user, model, QWEN, FILE)
    found = listed()["qwen3-4b"]
    assert all(re.search(rf"\b{field}\b", listing.__doc__ or "") for field in found)
    assert (found["model"], found["quant"], found["place"]) == ("qwen3-4b", "Q4_K_M", "hub cache")
    assert (found["path"], found["files"]) == (str(link), [str(link)])
    assert found["full_name"] == f"{QWEN}:Q4_K_M"
    assert found["size"] == model.stat().st_size
    assert found["fits"] is True
    assert 0 < found["fits_context"] <= found["context"]
    assert (found["last_used"], found["loaded"], found["damage"]) == (None, False, None)


def test_a_damaged_file_is_listed_as_such(user, model):
    own("x").parent.mkdir(parents=True)
    own("cut.gguf").write_bytes(model.read_bytes()[:-100])
    own("page.gguf").write_text("<!doctype html>")
    found = listed()
    assert found["cut"]["fits"] is False
    assert "100" in found["cut"]["damage"]
    assert "web page" in found["page"]["damage"]
    assert said("list").count("damaged") == 2


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
        usage.note_use(str(own(f"own{number}.gguf")))
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        run = edgechat("list")
        seconds.append(time.perf_counter() - began)
        assert run.returncode == 0
    began = time.perf_counter()
    listing.run(json=False)
    inside = time.perf_counter() - began
    n = len(capsys.readouterr().out.splitlines()) - 1
    began = time.perf_counter()
    edgechat("rm", "--help")
    start = time.perf_counter() - began
    with capsys.disabled():
        print(f"\n{n} models listed in {seconds[0]:.2f} s, again in {min(seconds[1:]):.2f} s;", end=" ")
        print(f"in the program {inside:.3f} s; starting it takes {start:.2f} s")


# What was used last


def test_a_run_is_remembered(user, model):
    homes.in_hub(user, model, "them/Small-GGUF", "Small-Q4_0.gguf")
    began = time.time()
    assert edgechat("run", "them/Small-GGUF", "hi", "--max-tokens", "2").returncode == 0
    found = listed()
    assert next(iter(found)) == "Small-Q4_0"  # the one that was used last comes first
    assert began - 1 < found["Small-Q4_0"]["last_used"] < time.time() + 1
    assert found["Small-Q4_0"]["loaded"] is False
    assert found["guide"]["last_used"] is None
    assert "just now" in said("list")


def test_records_of_use_that_are_damaged(user, model):
    path = homes.place(model, own("mine.gguf"))
    usage.note_use(str(path))
    (record,) = (paths.data_dir() / "used").iterdir()
    assert usage.uses()[str(path)].is_loaded  # by this process
    for damage in ("", "[" * 5000, "{}", '{"path": 1, "when": "x"}'):
        record.write_text(damage)
        assert usage.uses() == {}
    usage.note_use(str(path))
    assert usage.use_of(path) is not None


def test_records_of_use_do_not_pile_up(user, monkeypatch):
    monkeypatch.setattr(usage, "MOST_REMEMBERED", 3)
    for number in range(6):
        usage.note_use(f"/models/{number}.gguf")
    assert len(usage.uses()) == 3


# Names, everywhere


def test_names_of_other_tools_models_run_and_plan(user, model):
    homes.in_ollama(user, model, "llama3.2:3b")
    homes.in_lm_studio(user, model, "them/Mid-GGUF/Mid-Q6_K.gguf")
    for name in ("ollama/llama3.2:3b", "Mid-Q6_K"):
        run = edgechat("run", name, "hi", "--max-tokens", "2", "--json")
        assert run.returncode == 0, run.stderr
        assert json.loads(run.stdout)["plan"]["model"] == name
        assert json.loads(said("plan", name, "--json"))["model"] == name


def test_a_name_without_a_command_says_what_to_type(user, model):
    homes.in_ollama(user, model, "llama3.2:3b")
    run = edgechat("ollama/llama3.2:3b", "hi")
    assert run.returncode == 2
    assert "edgechat run ollama/llama3.2:3b hi" in " ".join(run.stderr.split())


@pytest.mark.values
@pytest.mark.parametrize("command", ["show", "rm", "verify", "import"])
@pytest.mark.parametrize("name", ["nowhere", "", "a/../../nowhere", "x" * 3000, "\x1b[31m"])
def test_names_that_mean_nothing(user, command, name):
    assert "\x1b" not in refusal(command, name)


def test_a_typo_is_told(user, model):
    homes.place(model, own("my-model.gguf"))
    for command in ("show", "rm", "verify", "import"):
        assert "Did you mean my-model" in refusal(command, "my-modle")


# show


def test_a_model_is_shown(user, model):
    link = homes.in_hub(user, model, QWEN, FILE)
    text = said("show", "qwen3-4b")
    labels = [line.split()[0] for line in text.splitlines() if not line.startswith(" ")]
    assert labels == [
        *("Model", "Name", "Architecture", "Attention", "Context", "Quantization", "Licence", "Template"),
        *("Thinking", "Where", "Files", "Plan"),
    ]
    for part in (str(link), "hub cache", QWEN, "Apache-2.0", "its own", "does not think", "tokens/s"):
        assert part.lower() in text.lower(), part


def test_a_model_is_shown_to_programs(user, model):
    homes.place(tiny("moe"), own("routed.gguf"))
    found = json.loads(said("show", "routed", "--json"))
    names = set(re.findall(r"\b[a-z_]+\b", (show.__doc__ or "").split("\n\n")[2]))
    assert set(found) <= names
    assert found["experts"] > found["experts_used"] > 0
    assert found["plan"]["path"] == str(own("routed.gguf"))
    homes.in_hub(user, model, QWEN, FILE)
    homes.in_hub(user, model, QWEN, FILE.replace("Q4_K_M", "Q8_0"))


def test_every_kind_is_shown(user):
    for kind in ("dense", "windowed", "hybrid", "moe"):
        homes.place(tiny(kind), own(f"{kind}.gguf"))
        assert "Plan" in said("show", kind)
    assert "window of" in said("show", "windowed")
    assert "layers have none" in said("show", "hybrid")


def test_a_file_that_is_nobodys_is_shown(user, model, tmp_path):
    path = homes.place(model, tmp_path / "loose.gguf")
    assert "elsewhere" in said("show", path)
    assert "is not a GGUF file" in refusal("show", __file__)


# rm


def test_removing_asks_and_without_a_terminal_wants_to_be_told(user, model):
    path = homes.place(model, own("mine.gguf"))
    run = edgechat("rm", "mine")
    assert run.returncode == 2
    assert "--yes" in run.stderr
    assert path.exists()
    text = said("rm", "mine", "--yes")
    assert "freed" in text
    assert not path.exists()


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


def hub_is_sound():
    """Return the files that huggingface_hub itself finds in its cache, which it must not find fault with."""
    code = (
        "from huggingface_hub import scan_cache_dir\nfound = scan_cache_dir()\nassert not found.warnings\n"
        "print(*[f.file_name for r in found.repos for v in r.revisions for f in v.files])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_removing_from_the_hubs_cache(user, model, other):
    four = homes.in_hub(user, model, "them/Small-GGUF", "Small-Q4_0.gguf")
    homes.in_hub(user, model, "them/Small-GGUF", "Small-Q4_0.gguf", commit="f" * 40, main=False)
    homes.in_hub(user, other, "them/Small-GGUF", "Small-Q8_0.gguf")
    repo = four.parents[2]
    assert "freed" in said("rm", "Small-Q4_0", "--yes")
    assert hub_is_sound() == {"Small-Q8_0.gguf"}
    assert not (repo / "blobs" / homes.sha256(model)).exists()
    assert set(listed()) == {"guide", "Small-Q8_0"}
    said("rm", "them/Small-GGUF:Q8_0", "-y")
    assert not repo.exists()  # nothing was left in it
    assert hub_is_sound() == set()


def test_removing_keeps_what_another_file_or_a_download_needs(user, model):
    """Two names for the same bytes are one model; a half download of another one is left."""
    first = homes.in_hub(user, model, "them/Small-GGUF", "Small-Q4_0.gguf")
    config = homes.in_hub(user, Path(__file__), "them/Small-GGUF", "config.json")
    half = first.parents[2] / "blobs" / ("e" * 64 + ".incomplete")
    half.write_bytes(b"half")
    said("rm", "Small-Q4_0", "--yes")
    assert half.exists()
    assert config.exists()
    assert hub_is_sound() == {"config.json"}


def test_a_damaged_cache_is_left_alone(user, model):
    link = homes.in_hub(user, model, "them/Small-GGUF", "Small-Q4_0.gguf")
    (link.parent / "gone.gguf").symlink_to("../../blobs/" + "d" * 64)
    assert "hf cache" in refusal("rm", "Small-Q4_0", "--yes")
    assert link.exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("guide", "is part of edgechat"),
        ("ollama/llama3.2:3b", "ollama rm llama3.2:3b"),
        ("Mid-Q6_K", "LM Studio, under My Models"),
        ("old-Q8_0", "rm "),
    ],
)
def test_what_another_tool_keeps_is_not_removed(user, model, name, says):
    files = [
        homes.in_ollama(user, model, "llama3.2:3b"),
        homes.in_lm_studio(user, model, "them/Mid-GGUF/Mid-Q6_K.gguf"),
        homes.place(model, user / ".cache/llama.cpp/old-Q8_0.gguf"),
    ]
    assert says in refusal("rm", name, "--yes")
    assert all(file.exists() for file in files)


def test_a_loose_file_is_not_removed(user, model, tmp_path):
    path = homes.place(model, tmp_path / "loose.gguf")
    assert "not in edgechat's folder" in refusal("rm", path, "--yes")
    assert path.exists()


def test_of_several_files_one_has_to_be_named(user, model, other):
    homes.in_hub(user, model, QWEN, FILE)
    homes.in_hub(user, other, QWEN, FILE.replace("Q4_K_M", "Q8_0"))
    text = refusal("rm", "qwen3-4b", "--yes")
    assert "qwen3-4b:Q4_K_M, qwen3-4b:Q8_0" in text
    said("rm", "qwen3-4b:q8_0", "--yes")
    assert listed()["qwen3-4b"]["quant"] == "Q4_K_M"


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


def test_a_link_in_our_folder_frees_nothing(user, model, tmp_path):
    target = homes.place(model, tmp_path / "kept.gguf")
    own("x").parent.mkdir(parents=True)
    own("link.gguf").symlink_to(target)
    assert "frees no space" in said("rm", "link", "--yes")
    assert target.exists()
    assert not own("link.gguf").is_symlink()


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
    assert "of that name already" in refusal("import", path)
    assert "is already in edgechat's folder" in refusal("import", "loose")
    said("import", path, "--name", "another")
    assert {"loose", "another"} <= set(listed())
    assert sorted(file.name for file in own("x").parent.iterdir()) == ["another.gguf", "loose.gguf"]


def test_a_file_is_moved(user, model, tmp_path):
    path = homes.place(model, tmp_path / "loose.gguf")
    said("import", path, "--move")
    assert not path.exists()
    assert own("loose.gguf").read_bytes() == model.read_bytes()


def test_a_split_model_is_imported_whole(user, tmp_path):
    write(Spec(), tmp_path / "big-Q8_0.gguf", split_max_tensors=10)
    parts = sorted(tmp_path.glob("big-*"))
    said("import", parts[1], "--name", "large")
    assert len(list(own("x").parent.glob("large-0000*-of-*.gguf"))) == len(parts)
    assert listed()["large"]["size"] == sum(part.stat().st_size for part in parts)
    parts[1].unlink()
    assert "is missing" in refusal("import", parts[0])
    assert len(list(own("x").parent.iterdir())) == len(parts)


def test_an_import_that_collides_in_its_last_part_leaves_nothing(user, tmp_path):
    write(Spec(), tmp_path / "big.gguf", split_max_tensors=10)
    parts = sorted(tmp_path.glob("big-*"))
    own("x").parent.mkdir(parents=True)
    own(parts[0].name).touch()
    assert "of that name already" in refusal("import", parts[0])
    assert [file.name for file in own("x").parent.iterdir()] == [parts[0].name]


def test_what_other_tools_keep_is_imported_by_its_name_and_never_moved(user, model):
    blob = homes.in_ollama(user, model, "llama3.2:3b")
    assert "is not moved" in refusal("import", "ollama/llama3.2:3b", "--move")
    assert shares(said("import", "ollama/llama3.2:3b", "--name", "mine"), own("mine.gguf"), blob)
    assert blob.exists()


@pytest.mark.parametrize("name", ["../evil", "a/b", ".hidden", "", "a\x1bb", "x" * 300, "c:evil"])
def test_names_that_cannot_be(user, model, tmp_path, name):
    path = homes.place(model, tmp_path / "loose.gguf")
    assert "is not a valid name for a model" in refusal("import", path, "--name", name)


def test_what_is_no_model_is_not_imported(user, model, tmp_path):
    damaged = tmp_path / "cut.gguf"
    damaged.write_bytes(model.read_bytes()[:-1])
    refusal("import", damaged)
    (tmp_path / "page.gguf").write_text("<html>")
    assert "web page" in refusal("import", tmp_path / "page.gguf")
    assert not own("x").parent.exists() or not list(own("x").parent.iterdir())


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


def test_sound_models_verify(user, model, other):
    homes.in_hub(user, model, "them/Small-GGUF", "Small-Q4_0.gguf")
    homes.in_ollama(user, other, "llama3.2:3b")
    homes.place(model, own("mine.gguf"))
    lines = said("verify").splitlines()
    assert len(lines) == 5
    assert [("hashes match" in line) for line in lines[:4]] == [False, False, True, True]
    assert lines[4] == "4 models checked, none damaged."
    assert said("verify", "mine").startswith("ok       mine: ")


def flip(path):
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def test_a_changed_byte_is_found(user, model, other):
    flip(homes.in_hub(user, model, "them/Small-GGUF", "Small-Q4_0.gguf").resolve())
    flip(homes.in_ollama(user, other, "llama3.2:3b"))
    homes.place(_cut(model, user), own("c.gguf"))
    run = edgechat("verify")
    assert run.returncode == 1
    assert run.stdout.count("DAMAGED") == 3
    assert "edgechat rm Small-Q4_0 && edgechat pull them/Small-GGUF" in run.stdout
    assert "ollama rm llama3.2:3b && ollama pull llama3.2:3b" in run.stdout
    assert "edgechat rm c" in run.stdout
    assert run.stdout.splitlines()[-1] == "4 models checked, 3 damaged."


def test_a_hole_behind_a_model_is_damage(user, model):
    blob = homes.in_hub(user, model, "them/Small-GGUF", "Small-Q4_0.gguf").resolve()
    homes.place(model, own("mine.gguf"))
    for path in (blob, own("mine.gguf")):
        os.truncate(path, 1 << 40)  # which would take an hour to hash
    run = edgechat("verify")
    assert run.returncode == 1
    assert run.stdout.count("it has 1024.0 GiB of data after its last tensor") == 2
    assert "is not a valid GGUF file" in edgechat("plan", "mine").stderr


def _cut(model, folder):
    path = folder / "cut"
    path.write_bytes(model.read_bytes()[:-1])
    return path


def test_doctor_notes_a_folder_that_may_not_be_read(user, monkeypatch):
    from edgechat.cli.commands import doctor
    from edgechat.models.local.inventory import Inventory

    monkeypatch.setattr(doctor, "inventory", lambda: Inventory((), {Path("/x"): "Permission denied"}))
    (finding,) = [one for one in doctor.own_findings() if "cannot be read" in one.what]
    assert finding.what == "The models in /x cannot be read: Permission denied."
    assert not finding.weight


def test_a_repository_of_the_cache_is_planned_without_a_network(user, model):
    link = homes.in_hub(user, model, "them/Small-GGUF", "Small-Q4_0.gguf")
    for name in ("them/Small-GGUF", "them/Small-GGUF:Q4_0", "Small-Q4_0"):
        assert json.loads(said("plan", name, "--offline", "--json"))["path"] == str(link)
