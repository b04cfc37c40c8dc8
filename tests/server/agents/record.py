"""Record what a coding agent sends, by running it with a server whose answers are scripted here.

    python -m tests.server.agents.record codex FOLDER

FOLDER contains the agent's program (node_modules/.bin, or the bin folder of a virtual environment). The agent
changes a greeting in a file in a temporary repository: it reads the file, edits it and says so. What it sent
is written to `recorded/AGENT.json.gz`, without personal data or the agent's own prose: the words in prompts
and descriptions are replaced consistently, so that lengths and common prefixes stay the same.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import zlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgechat.cli.agents import AGENTS, ServerAddress
from edgechat.engine.types import ChatRequest, RequestEvent
from tests.server.fakes import KEY, FakeModels, Step, called, finished, serving

RECORDED = Path(__file__).with_name("recorded")
TASK = "In greet.py, change the greeting from Hello to Good morning."
FILE = 'def greet(name):\n    return "Hello " + name\n'
SAID = "The greeting in greet.py is now Good morning."
EDIT = """greet.py
```
def greet(name):
    return "Good morning " + name
```
"""
SED = "sed -i 's/Hello/Good morning/' greet.py"
CHANGE = {"old": 'return "Hello " + name', "new": 'return "Good morning " + name'}
COMMANDS: dict[str, list[str]] = {
    "codex": ["exec", "--skip-git-repo-check", "-s", "workspace-write", TASK],
    "claude": ["-p", TASK, "--permission-mode", "acceptEdits"],
    "opencode": ["run", TASK],
    "aider": ["--yes-always", "--no-check-update", "--analytics-disable", "--message", TASK, "greet.py"],
}
WORDS = (
    "amber anchor autumn badge beacon border bridge bronze cabin canal candle canyon carbon castle cedar "
    "chalk circle cliff copper coral corner cotton crater crystal current desert distant eagle early echo "
    "ember engine evening fabric falcon feather field flint forest garden golden granite harbor hollow "
    "horizon island"
)
HEADERS = ("anthropic-version", "anthropic-beta")
_KEPT = {"greet.py", "Hello", "Good", "morning", "greet", "name", "return"}
_PROSE = {"description", "instructions", "text", "content", "title"}


class Answering(FakeModels):
    """A model that does the task, with the tools of whatever agent asks."""

    async def stream(self, request: ChatRequest) -> AsyncGenerator[RequestEvent, None]:
        self._scripts = [self._next(request)]
        async for event in super().stream(request):
            yield event

    def _next(self, request: ChatRequest) -> list[Step]:
        names = {tool.name for tool in request.tools}
        done = sum(message.role == "tool" for message in request.messages)
        if not names:
            is_aider = request.max_tokens is None and any(TASK in one.content for one in request.messages)
            return [EDIT if is_aider else "Change the greeting"]
        path = str(Path.cwd() / "greet.py")
        if "exec_command" in names:
            steps = [("exec_command", {"cmd": "cat greet.py"}), ("exec_command", {"cmd": SED})]
        elif "Read" in names:
            edit = {"file_path": path, "old_string": CHANGE["old"], "new_string": CHANGE["new"]}
            steps = [("Read", {"file_path": path}), ("Edit", edit)]
        else:
            edit = {"filePath": path, "oldString": CHANGE["old"], "newString": CHANGE["new"]}
            steps = [("read", {"filePath": path}), ("edit", edit)]
        if done >= len(steps):
            return [SAID]
        name, arguments = steps[done]
        return [called(name, json.dumps(arguments), f"call_{done}"), finished("tools")]


class Recorder:
    """Records every request on its way to the app."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return the app, with recording."""

        async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
            body = b""

            async def record() -> Message:
                nonlocal body
                message = await receive()
                body += message.get("body", b"")
                return message

            try:
                await app(scope, record, send)
            finally:
                headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
                kept = {
                    name: headers[name] for name in ("anthropic-version", "anthropic-beta") if name in headers
                }
                self.requests.append(
                    {
                        "method": scope["method"],
                        "path": scope["path"],
                        "query": scope["query_string"].decode(),
                        "headers": kept,
                        "body": json.loads(body) if body else None,
                    }
                )

        return recorded


async def record(agent: str, folder: Path) -> list[dict[str, Any]]:
    """Run an agent; return its requests."""
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as place:
        home, repository = Path(place) / "home", Path(place) / "work"
        for one in (home, repository):
            one.mkdir()
        (repository / "greet.py").write_text(FILE)
        (home / ".gitconfig").write_text("[user]\n\tname = A\n\temail = a@example.org\n")
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "Begin"]):
            subprocess.run(["git", *words], cwd=repository, check=True, env={**os.environ, "HOME": str(home)})
        os.chdir(repository)
        async with serving(Answering(), around=recorder.around) as url:
            settings = AGENTS[agent].settings(ServerAddress(url, KEY, "scripted", 65_536), home)
            for name, text in settings.files.items():
                (home / name).write_text(text)
            environment = {"HOME": str(home), "PATH": f"{folder}:{os.environ['PATH']}", "LANG": "C.UTF-8"}
            environment |= {name: value for name, value in settings.environment.items() if value is not None}
            command = [str(folder / agent), *settings.arguments, *COMMANDS[agent]]
            process = await asyncio.create_subprocess_exec(
                *command, env=environment, stdin=subprocess.DEVNULL, cwd=repository
            )
            await asyncio.wait_for(process.wait(), 300)
        changed = (repository / "greet.py").read_text()
        if "Good morning" not in changed:
            raise SystemExit(f"{agent} has not made the change: {changed!r}")
        return json.loads(_without_places(json.dumps(recorder.requests), {place: "/tmp/place"}))


def _without_places(text: str, places: dict[str, str]) -> str:
    """Replace paths, ids and hashes consistently."""
    for place, name in places.items():
        text = text.replace(place, name)
    found: dict[str, str] = {}

    def stand_in(match: re.Match[str]) -> str:
        made = found.setdefault(match[0], f"{len(found) + 1:0{len(match[0])}d}")
        return re.sub(r"[0-9a-f]", "0", match[0])[: -len(made.lstrip("0"))] + made.lstrip("0")

    uuid = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    return re.sub(rf"{uuid}|\b[0-9a-f]{{32,64}}\b", stand_in, text)


def _without_prose(value: Any, key: str = "") -> Any:
    """Replace the words in an agent's prompts and tool descriptions."""
    if isinstance(value, dict):
        return {name: _without_prose(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_prose(one, key) for one in value]
    if not isinstance(value, str) or key not in _PROSE:
        return value
    said = re.split(f"({re.escape(TASK)}|{re.escape(SAID)}|.*billing-header.*)", value)
    return "".join(
        text if number % 2 else re.sub(r"[\w.'-]{3,}", _other, text) for number, text in enumerate(said)
    )


def _other(match: re.Match[str]) -> str:
    word = match[0]
    if word in _KEPT:
        return word
    words = WORDS.split()
    other = words[zlib.crc32(word.lower().encode()) % len(words)]
    return other.capitalize() if word[0].isupper() else other


def main() -> None:
    """Record one agent."""
    agent, folder = sys.argv[1:]
    version = subprocess.run([Path(folder) / agent, "--version"], capture_output=True, text=True, check=True)
    requests = asyncio.run(record(agent, Path(folder).resolve()))
    found = re.search(r"\d+(?:\.\d+)+", version.stdout)
    told = {"agent": agent, "version": found[0] if found else "", "requests": _without_prose(requests)}
    RECORDED.mkdir(exist_ok=True)
    packed = gzip.compress(json.dumps(told, ensure_ascii=False).encode(), mtime=0)
    (RECORDED / f"{agent}.json.gz").write_bytes(packed)
    for request in requests:
        print(request["method"], request["path"], len(json.dumps(request["body"])))


if __name__ == "__main__":
    main()
