"""`edgechat launch`: run a coding agent with a local model, on a server that stops when the agent exits."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from edgechat import settings
from edgechat.base import paths
from edgechat.base.errors import DoesNotFit, EngineError, ModelNotFound, SettingsError
from edgechat.base.process import spawn
from edgechat.base.text import one_line
from edgechat.cli import completion
from edgechat.cli.agents import AGENTS, Agent, AgentSettings, ServerAddress, any_program
from edgechat.cli.declaring import TEXT, Number, argument, command, option
from edgechat.cli.options import MOST
from edgechat.cli.terminal_io import StatusLine, ending_on_signals, note
from edgechat.cli.values import runs_elsewhere

if TYPE_CHECKING:
    from edgechat.planner.plan import LoadPlan

ROOMY = 32768
"""Context length that agents need, in tokens. Their instructions and tools alone take about 10,000."""
GUIDE = "guide"
_ADDRESS = re.compile(r"Serving .* at (http://\S+)/v1;")
_LOAD_SECONDS = 600.0
_STOP_SECONDS = 20.0


@command("launch", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, offline=True)
@argument(
    "agent",
    required=False,
    metavar="AGENT",
    help="The program to start: codex, claude, opencode, aider, crush, goose, pi or qwen. Options "
    "that edgechat does not know, and everything after --, are for the program.",
    complete=completion.agents,
)
@option(
    "--model",
    "-m",
    type=TEXT,
    help="The model to use: a file, or a name shown by `edgechat list`. Default: the model that the "
    "app would open with.",
    complete=completion.local_models,
)
@option(
    "--ctx",
    type=Number(int, min=1, max=MOST),
    help="Context length in tokens. Default: at least 32,768, if that fits.",
)
@option(
    "only_print",
    "--print",
    is_flag=True,
    help="Print the settings instead, for AGENT or any program, and serve until Ctrl+C.",
)
@click.pass_context
def launch(
    context: click.Context, agent: str | None, model: str | None, ctx: int | None, only_print: bool
) -> None:
    """Start a coding agent on a model of this machine; its configuration files are not changed."""
    chosen = _agent(agent) if agent is not None else None
    if chosen is None and not only_print:
        raise SettingsError(
            "No program was named.", hint=f"Name one of {', '.join(AGENTS)}, or use --print for any other."
        )
    program = _program(chosen) if chosen is not None and not only_print else None
    with StatusLine(sys.stderr) as status:
        status.show("planning")
        plan = _plan(model, ctx, agent or "AGENT")
    with ending_on_signals(), _serving(plan) as address, tempfile.TemporaryDirectory() as folder:
        settings_for = chosen.settings if chosen is not None else any_program
        setup = settings_for(address, Path(folder))
        for name, content in setup.files.items():
            (Path(folder) / name).write_text(content, encoding="utf-8")
        if program is None:
            _print_settings(chosen, setup)
            threading.Event().wait()  # until Ctrl+C
        else:
            raise Exit(_run_program(program, setup, context.args))


def _agent(name: str) -> Agent:
    if name not in AGENTS:
        raise SettingsError(
            f"edgechat does not know how to set up {one_line(name, 40)}.",
            hint=f"It knows {', '.join(AGENTS)}; for others: edgechat launch --print",
        )
    return AGENTS[name]


def _program(agent: Agent) -> str:
    found = shutil.which(agent.name)
    if found is None:
        raise SettingsError(f"{agent.name} is not installed.", hint=f"To install it: {agent.install}")
    return found


# The model.


def _plan(model: str | None, context: int | None, agent: str) -> LoadPlan:
    """Plan how to load the model, with enough context for agents if that fits, and print a note about it."""
    from edgechat.planner.prepare import prepare
    from edgechat.planner.request import PlanRequest

    name = _model(model)
    if runs_elsewhere(name):
        raise SettingsError(
            f"{one_line(name, 100)} is not loaded by edgechat, but agents need a model that is.",
            hint=f"Name one: edgechat launch {agent} --model NAME\n"
            f"  Or serve it, and set the agent up yourself: edgechat serve {one_line(name, 100)}",
        )
    plan = prepare(name, PlanRequest(context=context))
    if context is None and settings.load().context is None and plan.context < ROOMY:
        with contextlib.suppress(DoesNotFit):
            plan = prepare(name, PlanRequest(context=ROOMY))
    text = f"{one_line(plan.model_name)} with {plan.context:,} tokens of context"
    if plan.context < ROOMY:
        text += f": less than the {ROOMY:,} that agents usually need, but more does not fit here"
    note(f"{text}.")
    return plan


def _model(named: str | None) -> str:
    """Return the named model, or by default the one that the app would open.

    The guide is never chosen by default, because it cannot use tools.
    """
    import asyncio

    from edgechat.server.pool.available_models import first_model

    choice = asyncio.run(first_model(named))
    if choice.note is not None:
        note(choice.note)
    if named is None and choice.model == GUIDE:
        from edgechat.planner.listing import rows

        able = (row for row in rows() if row.model.name != GUIDE and row.fits and row.glance.kind == "chat")
        found = next(able, None)
        if found is None:
            raise ModelNotFound(
                "There is no model for agents on this machine.",
                hint="`edgechat plan` lists what fits; `edgechat pull NAME` downloads it.",
            )
        return found.model.name
    return choice.model


# The server.


@contextlib.contextmanager
def _serving(plan: LoadPlan) -> Iterator[ServerAddress]:
    """Run a server for a model, with a new API key. Loads the model before entering the context."""
    key = f"ek-{secrets.token_urlsafe(24)}"
    words = ["serve", plan.model_path, "--port", "0", "--ctx", str(plan.context)]
    program = [sys.executable] if spawn.frozen() else [sys.executable, "-P", *spawn.PROGRAM]
    log = paths.log_dir() / "launch.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*program, *words],
            env={**os.environ, "EDGECHAT_API_KEY": key},
            **spawn.options(stream),
            text=True,
        )
        try:
            with StatusLine(sys.stderr) as status:
                url = _url_of(process, log)
                entry = _wait_until_ready(process, url, key, log, status, plan.model_name)
            sees = "image" in entry.get("architecture", {}).get("input_modalities", ())
            yield ServerAddress(url, key, entry["id"], plan.context, sees)
        finally:
            _stop(process)


def _url_of(process: subprocess.Popen[str], log: Path) -> str:
    """Return the address that the server prints. Any further output is discarded."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := _ADDRESS.match(line):
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return found[1]
    raise _ended(log)


def _wait_until_ready(
    process: subprocess.Popen[str], url: str, key: str, log: Path, status: StatusLine, model: str
) -> dict[str, Any]:
    """Wait for the model to load, and return its entry from the server's list. Raises EngineError."""
    import httpx2

    end = time.monotonic() + _LOAD_SECONDS
    with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, trust_env=False) as client:
        while process.poll() is None and time.monotonic() < end:
            status.show(f"loading {model}")
            health: Any = client.get("/health").json()
            if health["status"] == "ready":
                listed: dict[str, Any] = client.get("/v1/models").json()["data"][0]
                return listed
            if health["status"] == "degraded":
                detail = health.get("detail", "")
                raise EngineError(f"The model could not be loaded: {detail}", hint=f"Its messages: {log}")
            time.sleep(0.05)
    raise _ended(log)


def _ended(log: Path) -> EngineError:
    return EngineError("The server ended before the model was loaded.", hint=f"Its messages: {log}")


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# Running the agent.


def _run_program(program: str, chosen: AgentSettings, arguments: Sequence[str]) -> int:
    """Run an agent in this terminal and return its exit code. Handling Ctrl+C is left to the agent."""
    environment = dict(os.environ)
    for name, value in chosen.environment.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    process = subprocess.Popen([program, *chosen.arguments, *arguments], env=environment)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the agent receives Ctrl+C, too
            continue


def _print_settings(agent: Agent | None, chosen: AgentSettings) -> None:
    """Print shell commands that start an agent with these settings."""
    for name, value in chosen.environment.items():
        if sys.platform == "win32":
            print(f'$env:{name} = "{value}"' if value is not None else f"Remove-Item Env:{name}")
        else:
            print(f"export {name}={shlex.quote(value)}" if value is not None else f"unset {name}")
    if agent is not None:
        print(shlex.join([agent.name, *chosen.arguments]))
    sys.stdout.flush()
    note("The server runs until Ctrl+C.")
