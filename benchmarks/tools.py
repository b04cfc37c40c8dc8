"""How many small tasks a model solves with the built-in file tools, in a chat and with a bare client.

    python -m benchmarks.tools MODEL.gguf [--llama LLAMA_BIN] [--tasks 1,2,3] [-v]

The model is asked about a small project written for this purpose. It has the tools list_files, read_file and
search_files for the project's folder, and temperature 0. A task is solved if the answer contains the required
words.

edgechat      a chat's own loop: `ChatSession.answer`, in this process, with everything permitted
llama-server  a bare client of /v1/chat/completions with the same tools and the same limit on rounds (--jinja)

LLAMA_BIN is a folder that contains llama-server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.reading import peer
from edgechat.chat.generation_options import CommandLineOptions
from edgechat.chat.reply.calls import UseChanged
from edgechat.chat.session import ChatSession, SessionServices
from edgechat.engine.types import Finished
from edgechat.planner.request import PlanRequest
from edgechat.settings import SamplingDefaults, Settings
from edgechat.tools.registry import ToolRegistry, ToolSet
from edgechat.tools.tool import ToolSpec

CONTEXT, MOST_TOKENS = 8192, 512
ASKED = "Find it in the files: {question}"
FILES = {
    "README.md": """# Lamplight

Switches street lamps. Run `lamplight serve`. The port is set in config/server.toml.
""",
    "LICENSE": """MIT License

Copyright (c) 2021 Ada Kruger
""",
    "CHANGELOG.md": """# Changelog

## 2.4.0

- Dims lamps after midnight.

## 2.3.1

- Fixes the clock at leap years.
""",
    "config/server.toml": """host = "0.0.0.0"
port = 8642
workers = 3
""",
    "config/lamps.json": """{
  "lamps": [
    {
      "id": "north",
      "watts": 70
    },
    {
      "id": "harbour",
      "watts": 120
    },
    {
      "id": "mill",
      "watts": 45
    }
  ]
}""",
    "src/main.py": """from clock import is_night
from lamps import Lamp


def main() -> None:
    serve()
""",
    "src/clock.py": """SUNSET_HOUR = 19


def is_night(hour: int) -> bool:
    return hour >= SUNSET_HOUR or hour < 6
""",
    "src/lamps.py": """class Lamp:
    MAX_WATTS = 150

    def dim(self, share: float) -> None:
        if not 0 <= share <= 1:
            raise ValueError("share out of range")
""",
    "src/store.py": """import sqlite3

TIMEOUT_SECONDS = 12


def open_store(path):
    # TODO: retry when the disk is full
    return sqlite3.connect(path, timeout=TIMEOUT_SECONDS)
""",
    "tests/test_clock.py": """from clock import is_night


def test_noon():
    assert not is_night(12)
""",
    "docs/install.md": """Install Python 3.12 and run `pip install lamplight`.
""",
    "docs/people.md": """Maintainer: Ada Kruger. Translations: Ravi Menon.
Security reports go to tomas@example.org.
""",
}


@dataclass(frozen=True, slots=True)
class FileTask:
    """A question, and patterns that its answer must match."""

    question: str
    needs: tuple[str, ...]

    def is_solved(self, answer: str) -> bool:
        return all(re.search(need, answer, re.IGNORECASE) for need in self.needs)


TASKS = (
    FileTask("Which port does the server use?", ("8642",)),
    FileTask("How many workers are configured in config/server.toml?", (r"\b(3|three)\b",)),
    FileTask("Which lamp in config/lamps.json has the most watts?", ("harbour",)),
    FileTask("How many watts does the lamp mill have?", ("45",)),
    FileTask("Who holds the copyright?", ("Kruger",)),
    FileTask("Under which licence is the project?", ("MIT",)),
    FileTask("What is the newest version in the changelog?", (r"2\.4\.0",)),
    FileTask("Which version fixed the clock at leap years?", (r"2\.3\.1",)),
    FileTask("At which hour is sunset according to the source?", (r"\b(19|7 ?p)",)),
    FileTask("In which file is the function is_night defined?", (r"clock\.py",)),
    FileTask("Which exception does Lamp.dim raise for a wrong share?", ("ValueError",)),
    FileTask("What is the greatest wattage of a lamp in src/lamps.py?", ("150",)),
    FileTask("Which database does src/store.py use?", ("sqlite",)),
    FileTask("How long is the timeout of the store, in seconds?", (r"\b(12|twelve)\b",)),
    FileTask("Which file has a TODO?", (r"store\.py",)),
    FileTask("Which Python version does the documentation ask for?", (r"3\.12",)),
    FileTask("Who translates the project?", ("Menon",)),
    FileTask("To which address go security reports?", (r"tomas@example\.org",)),
    FileTask("Which files are in the folder src?", (r"main\.py", r"clock\.py", r"lamps\.py", r"store\.py")),
    FileTask("Which command starts the program according to the README?", ("lamplight serve",)),
)


@dataclass
class Answered:
    """An answer and its cost."""

    text: str = ""
    calls: list[str] = field(default_factory=list)
    computed: int = 0
    """Prompt tokens that were computed."""
    prompts: int = 0
    """Prompt tokens in total."""


Asking = Callable[[str], Awaitable[Answered]]


async def permit(tool: ToolSpec, arguments: str) -> bool:
    return True


async def in_chat(model: Path, folder: Path, run: Callable[[str, Asking], Awaitable[None]]) -> None:
    """Run the tasks in chats."""
    options = CommandLineOptions(
        sampling=SamplingDefaults(temperature=0.0), max_tokens=MOST_TOKENS, tools=(f"files:{folder}",)
    )
    services = SessionServices.real(PlanRequest(context=CONTEXT, draft="none"))
    session = ChatSession(services, str(model), keep=False, options=options)

    async def ask(question: str) -> Answered:
        answered, conversation = Answered(), await session.begin()
        await conversation.ask(ASKED.format(question=question))
        async with aclosing(session.answer(conversation, permission=permit)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    answered.prompts += event.usage.prompt_tokens
                    answered.computed += event.usage.prompt_tokens - event.usage.cached_tokens
                elif isinstance(event, UseChanged) and event.use.outcome != "open":
                    answered.calls.append(f"{event.use.name}{event.use.arguments} {event.use.outcome}")
        answered.text = conversation.turns[-1].content
        return answered

    try:
        await run("edgechat", ask)
    finally:
        await session.close()


async def by_client(
    model: Path, folder: Path, llama: Path, run: Callable[[str, Asking], Awaitable[None]]
) -> None:
    """Run the tasks on llama-server, with a client that does nothing but carry out calls."""
    tools = await ToolRegistry().open([f"files:{folder}"])
    functions = [
        {
            "type": "function",
            "function": {
                "name": tool.model_name,
                "description": tool.description,
                "parameters": json.loads(tool.schema),
            },
        }
        for tool in tools.tools
    ]
    async with peer(llama, model, "--jinja", slots=1, context=CONTEXT) as port:
        base = f"http://127.0.0.1:{port}"
        async with httpx2.AsyncClient(base_url=base, timeout=1200, trust_env=False) as client:

            async def ask(question: str) -> Answered:
                return await by_hand(client, tools, functions, question)

            await run("llama-server", ask)


async def by_hand(
    client: httpx2.AsyncClient, tools: ToolSet, functions: list[dict[str, Any]], question: str
) -> Answered:
    """Ask, and carry out calls until the model makes no more."""
    answered = Answered()
    messages: list[dict[str, Any]] = [{"role": "user", "content": ASKED.format(question=question)}]
    body = {"messages": messages, "tools": functions, "temperature": 0, "max_tokens": MOST_TOKENS}
    for _ in range(Settings().tool_rounds + 1):
        answer = (await client.post("/v1/chat/completions", json=body)).json()
        if "choices" not in answer:
            answered.calls.append(str(answer)[:200])
            break
        message, usage = answer["choices"][0]["message"], answer["usage"]
        messages.append(message)
        answered.text = message.get("content") or ""
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        answered.prompts += usage["prompt_tokens"]
        answered.computed += usage["prompt_tokens"] - cached
        if not message.get("tool_calls"):
            break
        for made in message["tool_calls"]:
            function = made["function"]
            tool = tools.find(function["name"])
            text = "There is no such tool."
            if tool is not None:
                text = (await tools.call(tool, function["arguments"])).text
            answered.calls.append(f"{function['name']}{function['arguments']}")
            messages.append({"role": "tool", "tool_call_id": made["id"], "content": text})
    return answered


async def told(name: str, ask: Asking, tasks: Sequence[int], verbose: bool) -> None:
    """Print how many tasks are solved and which ones are not."""
    wrong, computed, prompts, calls = list[int](), 0, 0, 0
    began = time.perf_counter()
    for number in tasks:
        answered = await ask(TASKS[number - 1].question)
        solved = TASKS[number - 1].is_solved(answered.text)
        wrong += [] if solved else [number]
        calls, computed = calls + len(answered.calls), computed + answered.computed
        prompts += answered.prompts
        if verbose or not solved:
            print(f"  {number} {'solved' if solved else 'WRONG'}: {answered.text[:200]!r} {answered.calls}")
    seconds = time.perf_counter() - began
    print(
        f"{name}: {len(tasks) - len(wrong)} of {len(tasks)} solved; wrong: {wrong}; {calls} calls, "
        f"{computed:,} of {prompts:,} prompt tokens computed, {seconds:.0f} s",
        flush=True,
    )


async def main(model: Path, llama: Path | None, tasks: Sequence[int], verbose: bool) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["EDGECHAT_HOME"] = str(Path(temporary, "home"))
        folder = Path(temporary, "lamplight")
        for name, text in FILES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

        async def run(name: str, ask: Asking) -> None:
            await told(name, ask, tasks, verbose)

        await in_chat(model, folder, run)
        if llama is not None:
            await by_client(model, folder, llama, run)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama", type=Path)
    parser.add_argument("--tasks", default=",".join(str(n + 1) for n in range(len(TASKS))))
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    chosen = [int(number) for number in options.tasks.split(",")]
    asyncio.run(main(options.model.absolute(), options.llama, chosen, options.verbose))
