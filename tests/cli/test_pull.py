"""`edgechat pull` as a program: what it chooses, what it says, what is here then."""

import io
import os
from contextlib import suppress

import pytest

from edgechat.base.errors import EdgechatError
from edgechat.cli.commands import pull as pull_command
from edgechat.cli.commands.pull import DownloadProgress
from edgechat.models.catalogue import catalogue
from edgechat.models.choices import RemoteFile
from edgechat.models.request import parse_request
from edgechat.planner.ranking.pulling import decide
from tests.cli.pulling import (
    EDGECHAT,
    REPO,
    complaint,
    found,
    sized,
    sound,
    variables,
)
from tests.cli.running import edgechat
from tests.counting import calls_of
from tests.hub import TOKEN
from tests.kit import PAIR, pair, tiny
from tests.planner.headers import little
from tests.terminal import Terminal, needs_tmux

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured")]

ENTRIES = """
[[model]]
name = "tiny-one"
aliases = ["t1"]
description = "A model of the tests."
licence = "MIT"
repo = "owner/tiny-GGUF"
file = "tiny-{quant}.gguf"
quant = "F32"
draft = "tiny-two"

[[model]]
name = "tiny-two"
description = "Its draft."
licence = "MIT"
repo = "owner/small-GGUF"
file = "small-{quant}.gguf"
quant = "F32"
no_draft = "It is one."
"""


@pytest.fixture
def entries(home):
    (home / "config").mkdir(parents=True)
    (home / "config/models.toml").write_text(ENTRIES)


def test_a_repository(hub, pull, hf_cache):
    repo = hub.add(REPO, {"tiny-F32.gguf": tiny(), "README.md": b"# tiny", "mmproj-F16.gguf": b"GGUF"})
    dry = found(pull(REPO, "--dry-run", "--json"))
    assert dry["dry_run"]
    assert not hf_cache.exists()
    answer = found(pull(REPO, "--json"))
    assert sound(answer)
    size = tiny().stat().st_size
    assert {key: answer[key] for key in ("model", "repo", "commit", "quant", "draft", "dry_run")} == {
        "model": REPO,
        "repo": REPO,
        "commit": repo.commit,
        "quant": "F32",
        "draft": None,
        "dry_run": False,
    }
    assert (answer["received_bytes"], answer["resumed_bytes"]) == (size, 0)
    assert answer["plan"]["exact"]
    assert answer["plan"]["path"] == answer["files"][0]["path"]
    assert answer["seconds"] > 0
    (file,) = answer["files"]
    assert (file["name"], file["here"]) == ("tiny-F32.gguf", False)
    again = pull(f"{REPO}:f32")
    assert again.returncode == 0
    assert "is already on this machine" in again.stdout
    assert "Why" in again.stdout
    ran = edgechat("run", file["path"], "hi", "--max-tokens", "3")
    assert ran.returncode == 0


@pytest.mark.usefixtures("entries")
def test_a_name_of_the_catalogue_and_its_draft(hub, pull):
    hub.add(REPO, {"tiny-F32.gguf": tiny(), "tiny-sub-F32.gguf": b"GGUFother"})
    hub.add("owner/small-GGUF", {"small-F32.gguf": little()})
    before = edgechat("run", "tiny-one", "hi")
    assert "edgechat pull tiny-one" in complaint(before)
    answer = found(pull("t1", "--json"))
    assert (answer["model"], answer["quant"], answer["draft"]["model"]) == ("tiny-one", "F32", "tiny-two")
    assert answer["plan"]["draft"]["model"] == "tiny-two"
    assert sound(answer)
    assert sound(answer["draft"])
    ran = edgechat("run", "tiny-one", "hi", "--max-tokens", "3")
    assert (ran.returncode, len(ran.stdout) > 0) == (0, True)
    hub.stop()
    offline = found(pull("tiny-one", "--offline", "--json"))
    assert offline["files"][0]["path"] == answer["files"][0]["path"]
    assert "is already on this machine" in pull("tiny-two", "--draft", "auto").stdout
    drafted = edgechat("run", "tiny-one", "hi", "--max-tokens", "40", "--json")
    assert found(drafted)["plan"]["draft"]["model"] == "tiny-two"


@pytest.mark.usefixtures("entries")
def test_a_draft_that_is_not_much_smaller_is_left_where_nobody_names_it(hub, pull):
    target, draft = pair(0.05, shape=PAIR.sized(n_layers=2))
    hub.add(REPO, {"tiny-F32.gguf": target})
    hub.add("owner/small-GGUF", {"small-F32.gguf": draft})
    by_itself = found(pull("tiny-one", "--dry-run", "--json"))
    assert (by_itself["draft"], by_itself["plan"]["draft"]) == (None, None)
    assert by_itself["plan"]["ngrams"]
    assert "its weights are more than half the size of the model's" in by_itself["plan"]["no_draft"]
    assert "tiny-two" in pull("tiny-one", "--dry-run").stdout
    named = found(pull("tiny-one", "--dry-run", "--json", "--draft", "tiny-two"))
    assert named["draft"]["model"] == named["plan"]["draft"]["model"] == "tiny-two"
    nobody = found(pull("tiny-one", "--dry-run", "--json", "--draft", "none"))
    assert (nobody["draft"], nobody["plan"]["ngrams"]) == (None, False)


def test_the_quant_that_is_asked_for(hub, pull):
    hub.add(REPO, {"a-Q8_0.gguf": tiny(), "a-F16.gguf": tiny(), "b/c-Q4_0-00001-of-00001.gguf": tiny()})
    answer = found(pull(REPO, "--quant", "q8_0", "--json"))
    assert [file["name"] for file in answer["files"]] == ["a-Q8_0.gguf"]
    assert "It has: F16, Q8_0, Q4_0." in complaint(pull(REPO, "--quant", "Q5_K_M"))
    assert "asks for F16, but --quant asks for Q8_0" in complaint(pull(f"{REPO}:F16", "--quant", "Q8_0"))
    address = f"https://huggingface.co/{REPO}/blob/main/b/c-Q4_0-00001-of-00001.gguf"
    assert found(pull(address, "--json"))["quant"] == "Q4_0"


def test_a_listing_of_thousands_of_models_is_work_for_each_once(hub, hf_cache):
    def cost(n_models):
        names = [f"m{n}-{('Q4_K_M', 'Q8_0', 'F16')[n % 3]}.gguf" for n in range(n_models)]
        repo = hub.add(REPO, {names[0]: tiny()})
        size = tiny().stat().st_size
        listed = {"size": size, "lfs": {"sha256": repo.sha256(names[0]), "size": size}}
        repo.info["siblings"] = [{"rfilename": name, **listed} for name in names]

        def work():
            with suppress(EdgechatError):  # of the three that it looks at, it may find none
                decide(parse_request(REPO))

        return calls_of(work)

    cost(10)  # imports
    assert cost(2_000) < 5 * cost(500)


def test_what_was_begun_is_gone_on_with(hub, pull, hf_cache):
    repo = hub.add(REPO, {"a-F32.gguf": tiny(), "a-Q8_0.gguf": sized(500_000)})
    assert found(pull(REPO, "--dry-run", "--json"))["quant"] == "Q8_0"
    blobs = hf_cache / f"models--{REPO.replace('/', '--')}" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{repo.sha256('a-F32.gguf')}.incomplete").write_bytes(tiny().read_bytes()[:1000])
    run = pull(REPO)
    assert "F32 is partly downloaded" in run.stdout
    again = pull(REPO)
    assert "F32 is already on this machine, and is just as suitable" in again.stdout
    assert found(pull(REPO, "--quant", "q8_0", "--json"))["resumed_bytes"] == 0
    assert found(pull(REPO, "--dry-run", "--json"))["quant"] == "Q8_0", "the better one of two that are here"


def test_a_revision(hub, pull, hf_cache):
    repo = hub.add(REPO, {"tiny-F32.gguf": tiny()})
    assert found(pull(REPO, "--revision", repo.commit, "--json"))["commit"] == repo.commit
    assert not list(hf_cache.glob("*/refs/*"))
    assert "no such revision" in complaint(pull(REPO, "--revision", "v9"))
    assert "is not a valid branch" in complaint(pull(REPO, "--revision", "../x"))


def too_large(hub):
    """Let the hub list a model of the catalogue that does not fit here."""
    if os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") > 40 << 30:
        pytest.skip("it fits here")
    entry = next(one for one in catalogue() if one.name == "llama-3.3-70b")
    size, sha256 = 43 * 10**9, "0" * 64
    files = [{"rfilename": entry.file_for("Q4_K_M"), "size": size, "lfs": {"sha256": sha256, "size": size}}]
    hub.add(entry.repo or "", {}).info["siblings"] = files


def test_what_does_not_fit_is_not_fetched_by_itself(hub, pull):
    too_large(hub)
    run = pull("llama-3.3-70b", "--quant", "Q4_K_M")
    assert "--force" in complaint(run)
    assert "needs about" in run.stderr
    assert not hub.requests("resolve")
    dry = pull("llama-3.3-70b", "--dry-run")
    assert (dry.returncode, "would download" in dry.stdout) == (0, True)


@needs_tmux
def test_what_does_not_fit_is_asked_about_in_a_terminal(hub, hf_cache, tmp_path, home):
    too_large(hub)
    with Terminal(tmp_path / "terminal", home=home) as terminal:
        terminal.run([*EDGECHAT, "pull", "llama-3.3-70b"], variables=variables())
        terminal.until("[y/N]")
        terminal.ask("n")
        terminal.until("left with 1")
        assert "Nothing was downloaded" in terminal.screen


def test_names_that_mean_nothing_on_the_hub(pull):
    assert "is part of edgechat" in complaint(pull("guide"))
    assert "already on this machine" in complaint(pull(str(tiny())))
    assert "Did you mean" in complaint(pull("qwen3-4"))
    assert pull(REPO, "--quant", "Q8_0", "--auto-quant").returncode == 2


def test_refusals(hub, pull, hf_cache, monkeypatch):
    hub.add(REPO, {"tiny-F32.gguf": tiny()}, gated="auto")
    said = complaint(pull(REPO))
    assert f"{hub.url}/{REPO}" in said
    assert "hf auth login" in said
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert sound(found(pull(REPO, "--json")))
    assert {one.token for one in hub.requests("store")} == {None}
    assert "or it is private" in complaint(pull("nobody/nothing"))


def test_progress_in_lines(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(pull_command.time, "monotonic", lambda: clock[0])
    out, file = io.StringIO(), RemoteFile("sub/model-Q4_0.gguf", 100 << 20, "0" * 64)
    shown = DownloadProgress(200 << 20, out)
    for step in range(0, 100, 10):
        shown.has(file, step << 20)
        clock[0] += 4
    assert out.getvalue().splitlines() == [
        "15% 30 MiB of 200 MiB, 2.5 MiB/s, 1:08 left, model-Q4_0.gguf",
        "30% 60 MiB of 200 MiB, 2.5 MiB/s, 0:56 left, model-Q4_0.gguf",
        "45% 90 MiB of 200 MiB, 2.5 MiB/s, 0:44 left, model-Q4_0.gguf",
    ]
    shown.says("a \x1b[2J sentence")
    assert "\x1b" not in out.getvalue()


EMBEDDER = """
[[model]]
name = "tiny-embedder"
description = "It makes embeddings."
licence = "MIT"
repo = "owner/tiny-GGUF"
file = "tiny-{quant}.gguf"
quant = "Q8_0"
no_draft = "It is an embedding model."
[model.embedding]
query = "q: "
"""


def test_an_embedding_model_comes_as_recommended(home, hub, pull):
    (home / "config").mkdir(parents=True)
    (home / "config/models.toml").write_text(EMBEDDER)
    files = {f"tiny-{quant}.gguf": tiny("bert", weights=quant) for quant in ("F16", "Q8_0")}
    hub.add(REPO, files)
    answer = pull("tiny-embedder")
    assert "downloaded tiny-Q8_0.gguf" in answer.stdout
    assert "Chat with it" not in answer.stdout
    assert "/v1/embeddings" in answer.stdout
    assert found(pull("tiny-embedder", "--quant", "f16", "--json"))["quant"] == "F16"


def test_a_reranking_model_comes_as_recommended(home, hub, pull):
    (home / "config").mkdir(parents=True)
    entry = EMBEDDER.partition("[model.embedding]")[0].replace("tiny-embedder", "tiny-ranker")
    (home / "config/models.toml").write_text(entry + "reranks = true\n")
    hub.add(REPO, {f"tiny-{quant}.gguf": tiny("bert-reranker", weights=quant) for quant in ("F16", "Q8_0")})
    answer = pull("tiny-ranker")
    assert "downloaded tiny-Q8_0.gguf" in answer.stdout
    assert 'reranking_model = "tiny-ranker" in settings.toml' in answer.stdout
    assert "/v1/rerank" in answer.stdout
    assert "Chat with it" not in answer.stdout
