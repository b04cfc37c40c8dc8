"""`edgechat run` as a program: what it prints where, and how it ends."""

import json
import os
import re
import string
import subprocess
import time

import psutil
import pytest

from tests import scripted
from tests.cli.running import EDGECHAT, complaint, edgechat
from tests.kit import NOT_PRINTABLE, corrupt, pair, tiny
from tests.planner.headers import little
from tests.terminal import Terminal, hostile, needs_tmux

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model():
    return tiny("dense", mute=NOT_PRINTABLE)


def test_the_answer_goes_to_stdout_and_the_rest_to_stderr(script):
    run = edgechat("run", script(reply="Hello, wörld."), "hi")
    assert (run.returncode, run.stdout) == (0, "Hello, wörld.\n")
    assert "14 tokens" in run.stderr
    assert "\x1b" not in run.stderr


@pytest.mark.quick
def test_a_real_model_answers(model):
    run = edgechat("run", model, "hi", "--max-tokens", "20", "--temperature", "0")
    assert run.returncode == 0
    assert len(run.stdout) == 21


@pytest.mark.parametrize("draft", ["none", "ngram"])
def test_every_end_that_a_file_lists_ends_the_reply_and_is_not_shown(model, tmp_path, draft):
    words = ("hi", "--max-tokens", "40", "--temperature", "0", "--draft", draft)
    whole = edgechat("run", model, *words).stdout
    at = next(at for at, letter in enumerate(whole) if at > 5 and letter not in whole[:at])
    listed = {"tokenizer.ggml.eos_token_ids": [258, ord(whole[at]), 5000]}
    ended = tiny("dense", mute=NOT_PRINTABLE, folder=tmp_path, overrides=listed)
    run = edgechat("run", ended, *words, "--json")
    found = json.loads(run.stdout)
    assert (found["text"], found["finish_reason"]) == (whole[:at], "stop")
    shown = json.loads(edgechat("show", ended, "--json").stdout)
    assert shown["end_tokens"] == sorted([257, 258, ord(whole[at])])
    assert any("1 of the 3 end tokens" in note for note in shown["plan"]["notes"])


def test_tokens_that_a_file_suppresses_are_never_written(model, tmp_path):
    words = ("hi", "--max-tokens", "40", "--temperature", "0")
    whole = edgechat("run", model, *words).stdout
    listed = {"tokenizer.ggml.suppress_tokens": [-1, ord(whole[0]), ord(whole[3])]}
    suppressing = tiny("dense", mute=NOT_PRINTABLE, folder=tmp_path, overrides=listed)
    text = edgechat("run", suppressing, *words).stdout
    assert len(text) == len(whole)
    assert not {whole[0], whole[3]} & set(text)


def test_the_seed_repeats_the_answer(model):
    words = ("run", model, "hi", "--max-tokens", "30", "--temperature", "1.5")
    first, second, other = (edgechat(*words, "--seed", seed).stdout for seed in "778")
    assert first == second != other


def test_json(model):
    run = edgechat(
        "run", model, "hi", "--max-tokens", "20", "--system", "Be brief.", "--json", "--ctx", "512"
    )
    found = json.loads(run.stdout)
    assert found.keys() == {
        "text",
        "thinking",
        "sources",
        "calls",
        "finish_reason",
        "error",
        "usage",
        "timings",
        "chat",
        "plan",
        "speculation",
    }
    assert found["finish_reason"] == "length"
    assert found["error"] is None
    assert found["usage"]["completion_tokens"] == 20
    assert found["usage"]["cached_tokens"] == 0
    assert found["timings"].keys() == {"load_ms", "ttft_ms", "prompt_tps", "decode_tps"}
    assert found["timings"]["ttft_ms"] > 0
    assert found["plan"]["context"] == 512
    assert found["plan"]["reasons"]


def test_a_piped_prompt(script):
    path = script(
        rules=[{"when": "Sum up:\n\nthe text", "reply": "both"}, {"when": "the text", "reply": "one"}]
    )
    assert edgechat("run", path, piped="the text").stdout == "one\n"
    assert edgechat("run", path, "Sum up:", piped="the text").stdout == "both\n"
    assert edgechat("run", path, "-", piped="the text").stdout == "one\n"
    assert "empty" in complaint(edgechat("run", path, piped=" \n"))
    assert "is not text" in complaint(edgechat("run", path, "Sum up:", piped="\0\1"))


def test_a_pipe_that_says_nothing_is_waited_for_and_told(script):
    path = script(rules=[{"when": "the text", "reply": "one"}])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*EDGECHAT, "run", path, "Sum up:", "--json"], text=True, **pipes) as process:
        assert process.stderr.readline().startswith("note: still reading standard input")
        stdout, stderr = process.communicate("the text", timeout=30)
    assert json.loads(stdout)["text"] == "one"
    assert "standard input" not in stderr


def test_stop_strings_and_thinking(script):
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}{% endif %}"
        "{# </think> #}"
    )
    path = script(reply="<think>hm</think>one two three", template=template)
    found = json.loads(
        edgechat("run", path, "hi", "--json", "--stop", " three", "--stop", "x", "--think").stdout
    )
    assert (found["text"], found["thinking"], found["finish_reason"]) == ("one two", "hm", "stop")
    assert edgechat("run", path, "hi").stdout == "one two three\n"


def test_control_characters_never_reach_the_terminal(script):
    path = script(reply="a\x1b]52;c;aGk=\x07b\x9b31mc\r\x08d\te\n")
    assert edgechat("run", path, "hi").stdout == "a]52;c;aGk=b31mcd\te\n"
    raw = edgechat("run", path, "hi", "--json").stdout
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in raw.strip())
    assert "\x1b" in json.loads(raw)["text"]


HOSTILE = {
    "raises": ("{{ raise_exception('no thanks') }}", "no thanks"),
    "loops": ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "template"),
    "grows": ("{{ 'a' * 300000000 }}", "template"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_that_fails(name):
    source, words = HOSTILE[name]
    assert words in complaint(edgechat("run", tiny("dense", chat_template=source), "hi"))


def test_files_that_are_no_models(model, tmp_path):
    text = tmp_path / "notes.gguf"
    text.write_text("these are notes")
    bad = {
        tmp_path / "missing.gguf": "no file",
        tmp_path: "folder",
        text: "not a GGUF file",
        corrupt.truncated(model, tmp_path / "short.gguf", keep=-1000): "missing",
        corrupt.truncated(model, tmp_path / "header.gguf", keep=100): "",
        corrupt.wrong_magic(model, tmp_path / "magic.gguf"): "not a GGUF file",
        corrupt.patched(model, tmp_path / "corrupt.gguf", at=24, data=b"\xff" * 64): "",
        corrupt.unknown_architecture(tmp_path / "arch.gguf"): "unknown model architecture: 'nonesuch'",
        corrupt.f64_tensor(tmp_path / "f64.gguf"): "F64",
    }
    for path, words in bad.items():
        assert words in complaint(edgechat("run", path, "hi")), path


def test_a_context_that_cannot_be(model):
    beyond = edgechat("run", model, "hi", "--ctx", "100000", "--max-tokens", "3")
    assert beyond.returncode == 0
    assert "note: The context is " in beyond.stderr
    assert "4096" in beyond.stderr
    tiny_one = edgechat("run", model, "hi", "--ctx", "1", "--max-tokens", "3")
    assert "note: A context is a multiple of 256 tokens; it is 256 instead of 1." in tiny_one.stderr
    said = complaint(edgechat("run", model, "word " * 500, "--ctx", "512"))
    assert "the context is 512 tokens" in said


def test_a_context_that_does_not_fit_into_memory(tmp_path):
    huge = tiny("dense", overrides={"llama.context_length": 2**31 - 1})
    assert "fit" in complaint(edgechat("run", huge, "hi", "--ctx", "2000000000"))


def test_debug_shows_the_traceback(tmp_path):
    for words in (("--debug", "run", "nosuch", "hi"), ("run", "nosuch", "hi", "--debug")):
        run = edgechat(*words)
        assert run.returncode == 1
        assert "Traceback" in run.stderr
        assert "ModelNotFound" in run.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rnu", "x"), "Did you mean 'run'"),
        (("guide",), "Did you mean: edgechat --model guide"),
        (("my model.gguf",), "Did you mean: edgechat --model 'my model.gguf'"),
        (("Qwen3-4B", "hi"), "Did you mean: edgechat run Qwen3-4B hi"),
        (("run",), "Missing argument"),
        (("run", "guide", "hi", "--temprature", "1"), "temperature"),
        (("run", "guide", "hi", "--temperature", "hot"), "temperature"),
        (("run", "guide", "hi", "--max-tokens", "0"), "max-tokens"),
        (("--model", "x", "run", "guide", "hi"), "edgechat run MODEL"),
    ],
)
def test_usage_errors(words, said):
    run = edgechat(*words)
    assert run.returncode == 2
    assert said in run.stderr
    assert "Traceback" not in run.stderr


def test_without_a_terminal_the_app_says_what_to_do_instead():
    assert "edgechat run guide" in complaint(edgechat(), 2)


def test_a_crash_keeps_what_was_said(script, home):
    path = script(
        reply="I was about to", rules=[{"when": "die", "reply": "so far so good", "crash_after": 6}]
    )
    run = edgechat("run", path, "die")
    assert run.returncode == 3
    assert run.stdout == "so far\n"
    assert "SIGKILL" in run.stderr
    assert "Traceback" not in run.stderr
    run = edgechat("run", path, "die", "--json")
    assert run.returncode == 3
    found = json.loads(run.stdout)
    assert (found["text"], found["finish_reason"], found["usage"]) == ("so far", None, None)
    assert found["error"].keys() == {"kind", "message", "hint"}
    assert found["error"]["kind"] == "EngineCrashed"
    assert found["error"]["message"] in run.stderr
    log = (home / "log" / "edgechat.log").read_text()
    assert re.search(r" INFO edgechat\.\S+: model is loaded by llama\.cpp in \d+ ms$", log, re.MULTILINE)
    assert re.search(r" ERROR edgechat\.\S+: engine process \d+ died during an answer", log)
    assert "so far" not in log


def test_a_reader_that_goes_away_is_no_error(script):
    path = script(reply="many words " * 2000, token_ms=0.1)
    words = " ".join([*EDGECHAT, "run", str(path), "hi"])
    run = subprocess.run(
        ["sh", "-c", f"{words} | head -c 10"], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout == "many words"
    assert "Traceback" not in run.stderr
    assert "error" not in run.stderr


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("words", [("device",), ("--help",), ("run", "guide", "hi")])
def test_a_reader_that_never_reads_is_no_error(words):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as nobody:
        run = subprocess.run(
            [*EDGECHAT, *words], stdin=subprocess.DEVNULL, stdout=nobody, stderr=subprocess.PIPE, check=False
        )
    assert (run.returncode, run.stderr) == (0, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("words", [("--version",), ("run", "guide", "hi"), ("run", "guide", "hi", "--json")])
def test_an_output_that_is_full_is_told(words):
    with open("/dev/full", "wb") as full:
        run = subprocess.run(
            [*EDGECHAT, *words], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert run.returncode == 3
    said = run.stderr.decode().splitlines()
    assert said[0].startswith("error: ")
    assert "No space left on device" in said[0]
    assert len(said) == 2


def test_words_that_are_no_utf_8_and_terminals_that_are_not(script):
    path = script(rules=[{"when": "a\ufffdb", "reply": "wörld"}])
    command = f"PYTHONIOENCODING=ascii {' '.join(EDGECHAT)} run {path} \"$(printf 'a\\377b')\" </dev/null"
    run = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "w?rld\n"


def test_a_home_that_cannot_be_made(script, monkeypatch):
    monkeypatch.setenv("EDGECHAT_HOME", "/dev/null/home")
    assert "cannot create its folder" in complaint(edgechat("run", script(), "hi"))


@pytest.mark.parametrize("name", ["config", "log"])
def test_a_folder_that_may_not_be_read(script, tmp_path, name):
    folder = tmp_path / "home" / name
    folder.mkdir(parents=True)
    folder.chmod(0)
    if os.access(folder, os.R_OK):
        pytest.skip("this user may read everything")
    assert f"its folder {folder}" in complaint(edgechat("run", script(), "hi"))


def test_debug_prints_no_control_characters_raw():
    model = tiny("dense", chat_template="{{ raise_exception('\x1b]0;pwned\x07 no') }}")
    run = edgechat("run", model, "hi", "--debug")
    assert run.returncode == 1
    assert "Traceback" in run.stderr
    assert not any(ord(letter) < 32 and letter not in "\n\t" for letter in run.stderr)


def test_version():
    from edgechat import __version__

    assert edgechat("--version").stdout == f"edgechat {__version__}\n"


def test_a_single_token_has_no_rate(script):
    run = edgechat("run", script(reply="Hello there."), "hi", "--max-tokens", "1")
    assert "\n1 token · first token " in run.stderr


@needs_tmux
def test_a_conversation_line_by_line(script, tmp_path):
    rules = [{"when": "second", "reply": "Goodbye."}, {"when": "slow", "reply": "ab " * 500}]
    path = script(rules=rules, token_ms=5)
    with Terminal(tmp_path) as terminal:
        terminal.run([*EDGECHAT, "run", str(path)])
        terminal.until(">>>")
        terminal.ask("first")
        terminal.until("I am a script.")
        terminal.until("tokens/s")
        terminal.ask("slow")
        terminal.until("ab ab ab")
        terminal.press("C-c")
        terminal.until("stopped")
        terminal.ask("second")
        terminal.until(lambda: terminal.screen.rstrip().endswith(">>>") and "Goodbye." in terminal.screen)
        terminal.press("C-d")
        terminal.until("left with 0")


@needs_tmux
def test_pasted_lines_are_one_question_and_more_can_be_typed(script, tmp_path):
    rules = [{"when": "one\ntwo\nthree", "reply": "Pasted."}, {"when": "four\nfive\nsix", "reply": "Typed."}]
    path = script(rules=rules)
    with Terminal(tmp_path) as terminal:
        terminal.run([*EDGECHAT, "run", str(path)])
        terminal.until("Alt+Enter begins another line")
        terminal.until(">>>")
        terminal.paste("one\ntwo\nthree")
        terminal.until("... three")
        terminal.press("Enter")
        terminal.until("Pasted.")
        terminal.until("tokens/s")
        terminal.until(">>>")
        terminal.type("four")
        terminal.press("M-Enter")
        terminal.type("five")
        terminal.press("Escape", "Enter")
        terminal.ask("six")
        terminal.until("Typed.")
        terminal.until(lambda: terminal.screen.rstrip().endswith(">>>"))
        terminal.press("C-d")
        terminal.until("left with 0")


@needs_tmux
def test_history_and_completion_at_the_prompt(script, tmp_path):
    path = script(rules=[{"when": "whales", "reply": "Of whales."}])
    home = tmp_path / "home"
    assert edgechat("run", path, "Tell me of \x1b]52;c;cHduZWQ=\x07\u202ewhales").returncode == 0
    (tmp_path / "notes one.txt").touch()
    (tmp_path / "notes \x1b]52;c;cHduZWQ=\x07.txt").touch()
    with Terminal(tmp_path / "terminal", home=home) as terminal:
        terminal.ask(f"cd {tmp_path}")
        terminal.run([*EDGECHAT, "run", str(path)])
        terminal.until(">>>")
        terminal.press("Up")
        terminal.until(">>> Tell me of ]52;c;cHduZWQ=whales")
        terminal.press("Enter")
        terminal.until("Of whales.")
        terminal.until(lambda: terminal.screen.rstrip().endswith(">>>"))
        terminal.press("C-r")
        terminal.type("whal")
        terminal.until("Tell me of ]52;c;cHduZWQ=whales", 5)
        terminal.press("C-g", "C-u")
        terminal.type("/att")
        terminal.press("Tab")
        terminal.until(">>> /attach")
        terminal.type(" notes")
        terminal.press("Tab")
        terminal.until(">>> /attach notes one.txt")
        assert hostile(terminal.raw) == []
        terminal.press("C-c")


@needs_tmux
def test_what_is_typed_while_an_answer_streams_is_asked_next(script, tmp_path):
    rules = [{"when": "slow", "reply": "ab " * 100}, {"when": "next", "reply": "Here."}]
    with Terminal(tmp_path) as terminal:
        terminal.run([*EDGECHAT, "run", str(script(rules=rules, token_ms=20))])
        terminal.until(">>>")
        terminal.ask("slow")
        terminal.until("ab ab ab")
        terminal.ask("next")
        terminal.until("Here.")


MARKDOWN = """# Title

A **bold** word and $x^2$, in a line that is longer than the terminal is wide and must be wrapped somewhere.

| a | b |
|---|---|
| one | two |
"""


@needs_tmux
@pytest.mark.parametrize("variables", ["", "NO_COLOR=1"])
def test_markdown_is_rendered_in_a_terminal(script, tmp_path, variables):
    with Terminal(tmp_path) as terminal:
        terminal.run([*EDGECHAT, "run", str(script(reply=MARKDOWN)), "hi"], variables=variables)
        terminal.until("left with 0")
        lines = [line.rstrip() for line in terminal.screen.split("\n")]
        at = lines.index("Title")
        assert lines[at : at + 9] == [
            *("Title", "━━━━━", ""),
            "A bold word and x², in a line that is longer than the terminal is wide and must be wrapped",
            *("somewhere.", "", "a    b", "───  ───", "one  two"),
        ]
        assert (b"\x1b[1;34m" in terminal.raw) is (variables == "")


@needs_tmux
@pytest.mark.parametrize(
    ("words", "variables"), [(["--raw"], ""), ([], "TERM=dumb"), (["--screen-reader"], "")]
)
def test_markdown_stays_as_it_is_where_that_is_asked_for(script, tmp_path, words, variables):
    with Terminal(tmp_path) as terminal:
        terminal.run([*EDGECHAT, "run", str(script(reply=MARKDOWN)), "hi", *words], variables=variables)
        terminal.until("left with 0")
        assert "# Title\n\nA **bold** word and $x^2$, in" in terminal.screen
        assert "| one | two |" in terminal.screen


@needs_tmux
def test_a_resize_loses_and_repeats_nothing(script, tmp_path):
    numbers = [f"n{number}" for number in range(120)]
    reply = "\n\n".join(" ".join(numbers[at : at + 30]) for at in range(0, 120, 30))
    with Terminal(tmp_path) as terminal:
        terminal.run([*EDGECHAT, "run", str(script(reply=reply, token_ms=4)), "hi"])
        terminal.until("n40 ")
        terminal.resize(60, 30)
        terminal.until("left with 0")
        # The terminal itself breaks what had been written for its old width.
        assert "".join(numbers) in "".join(terminal.screen.split())
        last = terminal.screen[terminal.screen.index("n90 ") :].split()
        assert last[:30] == numbers[90:]


@needs_tmux
def test_ctrl_c_writes_what_was_held_back(script, tmp_path):
    path = script(reply="Look: **bold words that " + "never end " * 2000, token_ms=5)
    with Terminal(tmp_path) as terminal:
        terminal.run([*EDGECHAT, "run", str(path), "hi"])
        terminal.until("Look:")
        time.sleep(1)
        assert "bold" not in terminal.screen  # it may become bold yet
        terminal.press("C-c")
        terminal.until("left with 130")
        assert "**bold words that" in terminal.screen  # behind the ^C of the terminal
        assert "Traceback" not in terminal.screen


@needs_tmux
def test_ctrl_c_at_the_prompt_ends_a_conversation(script, tmp_path):
    with Terminal(tmp_path) as terminal:
        terminal.run([*EDGECHAT, "run", str(script())])
        terminal.until(">>>")
        terminal.ask("first")
        terminal.until("tokens/s")
        terminal.press("C-c")
        terminal.until("left with 130")
        assert "Traceback" not in terminal.screen
        assert not terminal.processes("edgechat")


@needs_tmux
def test_an_error_in_a_conversation_is_printed_harmless(tmp_path):
    model = tiny("dense", chat_template="{{ raise_exception('\x1b]0;pwned\x07 no') }}")
    with Terminal(tmp_path) as terminal:
        terminal.run([*EDGECHAT, "run", str(model)])
        terminal.until(">>>")
        terminal.ask("hi")
        terminal.until("pwned no")
        assert b"\x1b]0;pwned" not in terminal.raw
        terminal.press("C-d")
        terminal.until("left with 0")


@needs_tmux
def test_ctrl_c_ends_a_question_and_leaves_the_terminal_as_it_was(script, tmp_path):
    path = script(reply="ab " * 5000, token_ms=5)
    with Terminal(tmp_path) as terminal:
        terminal.run([*EDGECHAT, "run", str(path), "hi"])
        terminal.until("ab ab ab")
        family = terminal.processes("edgechat")
        assert len(family) == 3
        terminal.press("C-c")
        terminal.until("left with 130")
        assert "Traceback" not in terminal.screen
        terminal.ask("stty -a | grep -o '[-]*echo '")
        terminal.until(lambda: "\necho \n" in terminal.screen or "\necho\n" in terminal.screen)
        _, alive = psutil.wait_procs(family, timeout=3)
        assert not alive


# Drafts.


def test_a_draft_changes_the_speed_and_not_the_answer():
    target, draft = pair(0.05, mute=NOT_PRINTABLE)
    words = ("run", target, "hi", "--max-tokens", "60", "--temperature", "0", "--json", "--draft")
    plain, both = (json.loads(edgechat(*words, who).stdout) for who in ("none", draft))
    assert both["text"] == plain["text"]
    assert plain["speculation"] is None
    assert (plain["plan"]["draft"], plain["plan"]["ngrams"]) == (None, False)
    assert both["plan"]["draft"]["path"] == str(draft)


def test_what_a_draft_made_is_told(tmp_path):
    letters = string.ascii_uppercase[:23]
    words = "".join(letters[at * step % 23] for step in range(1, 11) for at in range(23))  # each pair is new
    target = scripted.write(tmp_path / "target.gguf", n_layers=2, reply=words, token_ms=12)
    draft = scripted.write(tmp_path / "draft.gguf", reply=words)
    told = json.loads(edgechat("run", target, "hi", "--json", "--draft", draft).stdout)["speculation"]
    assert told.keys() == {"drafted_tokens", "accepted_tokens", "mean_length", "speedup", "drafters"}
    assert told["drafted_tokens"] == told["accepted_tokens"] > 50
    assert told["mean_length"] > 2
    assert told["drafters"] == ["draft", "n-grams"]


def test_what_is_said_again_is_drafted(script):
    path = script(reply="one two three four five six seven eight nine ten. " * 8, token_ms=12)
    run = edgechat("run", path, "hi")
    assert (run.returncode, "x from drafting" in run.stderr) == (0, True), run.stderr
    assert "from drafting" not in edgechat("run", path, "hi", "--draft", "none").stderr


def test_a_draft_that_is_not_used_is_told_of(tmp_path):
    target = scripted.write(tmp_path / "target.gguf", n_layers=2, reply="Hello.")
    broken = scripted.write(tmp_path / "draft.gguf", load_error="It is broken.")
    run = edgechat("run", target, "hi", "--draft", broken)
    assert (run.returncode, run.stdout) == (0, "Hello.\n")
    assert "The draft model draft is not used. It is broken." in run.stderr


def test_a_recurrent_model_is_drafted_for():
    words = ("run", tiny("hybrid", mute=NOT_PRINTABLE), "hi", "--max-tokens", "60", "--temperature", "0")
    plain, both = (edgechat(*words, "--draft", who) for who in ("none", little()))
    assert plain.returncode == both.returncode == 0
    assert both.stdout == plain.stdout


def test_who_cannot_draft(model):
    assert "the same model" in complaint(edgechat("run", model, "hi", "--draft", model))
    assert "no file" in complaint(edgechat("run", model, "hi", "--draft", "./nothing.gguf"))


@pytest.mark.parametrize(
    "words",
    [
        ["--seed", str(2**64)],
        ["--seed", "-1"],
        ["--seed", "1e3"],
        ["--seed", "9" * 5000],
        ["--top-k", str(2**31)],
        ["--max-tokens", str(2**64)],
        ["--ctx", str(2**64)],
        *([f"--{name}", "nan"] for name in ("temperature", "top-p", "min-p", "presence-penalty")),
    ],
    ids=lambda words: f"{words[0]} {words[1][:22]}",
)
def test_a_number_that_makes_no_sense_is_refused_before_anything_is_kept(script, home, words):
    run = edgechat("run", script(reply="No."), "hi", *words)
    assert run.returncode == 2, run
    assert words[0] in run.stderr
    assert "Internal error in edgechat" not in run.stderr
    assert not (home / "data" / "chats.db").exists()


def test_the_last_seed_of_all_is_taken(script):
    run = edgechat("run", script(reply="Yes."), "hi", "--seed", str(2**64 - 1))
    assert (run.returncode, run.stdout) == (0, "Yes.\n")
