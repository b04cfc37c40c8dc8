"""Transcripts: the output of commands, as text that is read and compared as a whole.

    == A conversation is renamed
      % chat a1 "First words"
      $ edgechat chats rename a1 Another
      Renamed to 'Another'.
      $ edgechat chats --json | pick id title
      "a1000000" "Another"
      $ edgechat chats pin nosuch
      ! error: There is no conversation 'nosuch'.
      !   edgechat chats
      [1]

Each case is a test with its own folder, $TMP, in which its commands run. `%` calls a scene, a function in the
module, with the world and words; `$` runs edgechat in its own process, or a line of sh. Its output follows,
then its errors after `!`, and its exit code unless that is 0; a command after `=` must end like the previous
one. `< file` and `<<< line` are piped into edgechat, `> file` stores its output, `| pick` selects JSON
fields, and `=> name` lets $name stand for what is printed. A line `...` stands for any lines, and <n> and the
other PATTERNS for what varies.

EDGECHAT_TRANSCRIPTS=rewrite pytest tests/cli/test_chats.py      after an intended change; read the diff
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import Run, edgechat

FOLDER = Path(__file__).parent
REWRITE = os.environ.get("EDGECHAT_TRANSCRIPTS") == "rewrite"
PATTERNS = {
    "n": r"\d+",
    "number": r"\d[\d.,]*",
    "size": r"[\d.]+ [KMGT]iB",
    "date": r"\d{4}-\d\d-\d\d(?: \d\d:\d\d)?",
    "time": r"[\d.]+ (?:ms|s|min|h)",
    "id": r"[0-9a-f]{8,64}",
    "any": r".*",
    " ": r" +",
}
_ESCAPES = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|[nt\\])")
_LETTERS = {"n": "\n", "t": "\t", "\\": "\\"}

Scene = Callable[..., object]


@dataclass
class World:
    """The folder in which a case's commands run, and names for what differs each time."""

    folder: Path
    request: pytest.FixtureRequest
    names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names["TMP"] = str(self.folder)

    def fixture(self, name: str) -> Any:
        return self.request.getfixturevalue(name)

    def words(self, line: str) -> list[str]:
        """Split a line into words, with names and escapes replaced."""
        return [self._word(word) for word in shlex.split(line)]

    def _word(self, word: str) -> str:
        word = re.sub(r"\$(\w+)", lambda found: self.names[found[1]], word)
        return _ESCAPES.sub(lambda found: _LETTERS.get(found[1]) or chr(int(found[1][1:], 16)), word)

    def run(self, line: str) -> list[str]:
        """Run a command; return its output, with names put back in place of their values."""
        line, picks, terms = line.partition(" | pick")
        line, names, name = line.partition(" => ") if not picks else (line, *terms.partition(" => ")[1:])
        terms = terms.partition(" => ")[0]
        done = self._edgechat(line) if re.match(r"([A-Z_]+=\S* )*edgechat ", f"{line} ") else self._sh(line)
        out = pick(done.stdout, terms.split()) if picks else done.stdout
        if names:
            out, self.names[name] = "", out.strip('"\n')
        said = [*out.splitlines(), *(f"! {one}".rstrip() for one in done.stderr.splitlines())]
        for name, value in sorted(self.names.items(), key=lambda item: -len(item[1])):
            assert value, name
            said = [one.replace(value, f"${name}") for one in said]
        return said + ([f"[{done.returncode}]"] if done.returncode else [])

    def _edgechat(self, line: str) -> Run:
        words, variables = self.words(line), {}
        while words[0] != "edgechat":
            name, _, variables[name] = words.pop(0).partition("=")
        words, kept = _split(words[1:], ">")
        words, lines = _split(words, "<<<")
        words, files = _split(words, "<")
        piped = "".join(f"{one}\n" for one in lines) + "".join(Path(one).read_text() for one in files)
        done = edgechat(*words, piped=piped if lines or files else None, **variables)
        if kept:
            self.folder.joinpath(*kept).write_text(done.stdout, encoding="utf-8")
            done.stdout = ""
        return done

    def _sh(self, line: str) -> Run:
        variables = os.environ | self.names
        return subprocess.run(["sh", "-c", line], env=variables, capture_output=True, text=True, check=False)


def _split(words: list[str], mark: str) -> tuple[list[str], list[str]]:
    at = words.index(mark) if mark in words else len(words)
    return words[:at], words[at + 1 :]


def pick(text: str, terms: list[str]) -> str:
    """Return fields of a JSON object, or of each in a list: `a.b`, `a.*.b` for all inside; `a=b` filters."""
    found = json.loads(text, parse_constant=pytest.fail) if text else []
    filters = [term.split("=", 1) for term in terms if "=" in term]
    paths = [term for term in terms if "=" not in term]
    lines = []
    for one in found if isinstance(found, list) else [found]:
        if all(str(_at(one, path)) == wanted for path, wanted in filters):
            values = [_at(one, path) for path in paths] or [sorted(one)]
            lines.append(" ".join(json.dumps(value, ensure_ascii=False) for value in values))
    return "\n".join(lines)


def _at(value: Any, path: str) -> Any:
    head, _, rest = path.partition(".")
    if not path:
        return value
    if head == "*":
        return [_at(one, rest) for one in (value.values() if isinstance(value, dict) else value)]
    return _at(value[int(head) if isinstance(value, list) else head], rest)


@dataclass
class Step:
    line: str
    expected: list[str] = field(default_factory=list)


@dataclass
class Case:
    title: str
    steps: list[Step] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        for step in self.steps:
            yield f"  {step.line}"
            yield from (f"  {line}".rstrip() for line in step.expected)


def read(text: str) -> tuple[str, list[Case]]:
    """Return the text before the first case, and the cases."""
    head, *parts = re.split(r"^== (.*)\n", text, flags=re.MULTILINE)
    cases = []
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        case = Case(title)
        for line in body.rstrip().splitlines():
            if line.startswith(("  $ ", "  % ", "  = ")):
                case.steps.append(Step(line[2:]))
            else:
                assert line[:2] in ("", "  "), f"in {title!r}: {line!r}"
                case.steps[-1].expected.append(line[2:])
        cases.append(case)
    return head, cases


def _pattern(line: str) -> str:
    parts = re.split(rf"<({'|'.join(PATTERNS)})>", line)
    return "".join(PATTERNS[part] if at % 2 else re.escape(part) for at, part in enumerate(parts))


def matches(expected: list[str], said: list[str]) -> bool:
    """Return True if a command printed what was expected, ignoring empty lines at the end."""
    expected, said = ("\n".join(lines).rstrip("\n").split("\n") for lines in (expected, said))
    lines = [r"(?:.*\n)*" if line == "..." else _pattern(line) + r"\n" for line in expected]
    return re.fullmatch("".join(lines), "".join(f"{line}\n" for line in said)) is not None


def aligned(expected: list[str], said: list[str]) -> list[str]:
    """Return the output, using the expected lines where they match."""
    left = [line for line in expected if line != "..."]
    shown = []
    for line in said:
        same = next((one for one in left if matches([one], [line])), None)
        if same is not None:
            left.remove(same)
        shown.append(line if same is None else same)
    return shown


def transcript(name: str, *scenes: Scene) -> Callable[..., None]:
    """Return a test of the transcripts in a file, with these scenes and the common ones."""
    from tests.cli import worlds

    path = FOLDER / name
    head, cases = read(path.read_text(encoding="utf-8"))
    assert cases, name
    known = {one.__name__: one for one in (*worlds.SCENES, *scenes)}

    @pytest.mark.parametrize("transcript", cases, ids=[case.title for case in cases])
    def test(transcript: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> None:
        monkeypatch.chdir(tmp_path)
        world, wrong = World(tmp_path, request), []
        expected: list[str] = []
        for step in transcript.steps:
            if step.line.startswith("% "):
                scene, *words = world.words(step.line[2:])
                known[scene](world, *words)
                assert not step.expected
                continue
            said = world.run(step.line[2:])
            expected = expected if step.line.startswith("= ") else step.expected
            if not matches(expected, said):
                said = aligned(expected, said)
                wrong += [f"  {step.line}", *difflib.ndiff(expected, said), ""]
                if REWRITE:
                    step.line, step.expected = f"$ {step.line[2:]}", said
                    expected = said
        if wrong and REWRITE:
            body = "\n".join("\n".join([f"== {case.title}", *case.lines(), ""]) for case in cases)
            path.write_text(head + body, encoding="utf-8")
        elif wrong:
            where = f"tests/cli/{name}, {transcript.title}: - expected, + printed"
            pytest.fail("\n".join([where, *wrong]), pytrace=False)

    return test
