"""`edgechat remote`: the servers under [remotes] in settings.toml. docs/remotes.md describes --json."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import urlsplit

import click
import msgspec
from click.exceptions import Exit

from edgechat import settings
from edgechat.base.errors import EdgechatError, SettingsError
from edgechat.base.network.offline import is_loopback
from edgechat.base.text import figure, flat, one_line
from edgechat.cli import completion
from edgechat.cli.declaring import TEXT, CliGroup, argument, option
from edgechat.cli.options import json_option
from edgechat.cli.terminal_io import complain, confirm, note, print_json, table
from edgechat.models.remote.measured import forget_speeds
from edgechat.models.remote.model import KINDS
from edgechat.settings import RemoteKind, RemoteServer, Settings
from edgechat.settings.reading import remote_fault

if TYPE_CHECKING:
    from edgechat.engine.types import Timings
    from edgechat.models.remote.listing import RemoteListing
    from edgechat.planner.plan import LoadPlan

_TRIAL = "Count from one to forty, in words."
_TRIAL_TOKENS = 64

_name = argument(
    "name",
    metavar="NAME",
    help="A name shown by `edgechat remote list`.",
    type=TEXT,
    complete=completion.remotes,
)


@click.group("remote", cls=CliGroup, no_args_is_help=True, offline=True)
def remote() -> None:
    """Add, list and try other servers, whose models answer as NAME/MODEL (vLLM, Ollama, ...)."""


@remote.command("add", offline=True)
@argument("url", metavar="URL", help="Its address: http://desk.local:8000", type=TEXT)
@option("--name", type=TEXT, metavar="NAME", help="Its name. Default: the beginning of its host name.")
@option(
    "--key-env", type=TEXT, metavar="VARIABLE", help="The environment variable that has the key it wants."
)
@option(
    "--kind", type=click.Choice(get_args(RemoteKind)), help="What it is. Default: found out by asking it."
)
def add(url: str, name: str | None, key_env: str | None, kind: RemoteKind | None) -> None:
    """Add a server to settings.toml, and list its models."""
    import asyncio

    from edgechat.models.remote.client import ASK_SECONDS
    from edgechat.models.remote.discovery import UNNAMED
    from edgechat.models.remote.listing import listing_of

    if "://" not in url:
        url = f"http://{url}"
    remotes = settings.load().remotes
    server = RemoteServer(url=url, key_env=key_env, kind=kind)
    if name is None:
        if same := next((known for known, one in remotes.items() if one.url == url), None):
            raise SettingsError(
                f"{one_line(url)} has already been added, as {same}.",
                hint=f"To try it: edgechat remote test {same}. To add it again: --name NAME",
            )
        name = _free_name(url, remotes)
    elif name in remotes:
        hint = f"To remove it: edgechat remote rm {one_line(name, 60)}"
        raise SettingsError(f"There is already a remote named {one_line(name, 60)}.", hint=hint)
    if fault := remote_fault(name, server):
        raise SettingsError(f"This cannot be a remote: {fault}")
    settings.change(("remotes", name), server)
    print(flat(f"Added {name} to {settings.settings_file()}."))
    if key_env is not None and url.startswith("http://") and not is_loopback(url):
        note("the key and your chats go over the network unencrypted: its address begins with http://")
    listing = asyncio.run(listing_of(name, server, ASK_SECONDS))
    if listing.error is not None:
        note(f"it cannot be used yet. {listing.error.message} {listing.error.hint or ''}")
        print(flat(f"To try again: edgechat remote test {name}"))
        return
    _print_models(listing)
    if listing.models and listing.models[0].id != UNNAMED:
        print(flat(f"Chat with one: edgechat run {listing.models[0].name}"))


@remote.command("list")
@json_option
def list_servers(json: bool) -> None:
    """List the servers; none is asked. `edgechat list` lists their models."""
    remotes = settings.load().remotes
    if json:
        print_json([_as_json(name, server) for name, server in remotes.items()])
    elif not remotes:
        print("There are no remotes yet. To add one: edgechat remote add URL")
    else:
        print(table([(flat(name), server.url, _key(server)) for name, server in remotes.items()]))


@remote.command("test", epilog="The exit code is 1 if the server cannot be used.", offline=True)
@_name
@json_option
def try_server(name: str, json: bool) -> None:
    """Ask a server what it is and which models it has; or, as NAME/MODEL, a model for a short answer."""
    import asyncio

    from edgechat.models.remote.client import ASK_SECONDS
    from edgechat.models.remote.listing import listing_of

    server_name, _, model = name.partition("/")
    server = _server(server_name)
    if model:
        raise Exit(_try_model(name, json=json))
    listing = asyncio.run(listing_of(server_name, server, ASK_SECONDS))
    if json:
        error = listing.error.message if listing.error is not None else None
        models = [_model_as_json(model) for model in listing.models]
        print_json({**_as_json(server_name, server), "kind": listing.kind, "error": error, "models": models})
    elif listing.error is not None:
        complain(listing.error.message, listing.error.hint)
    else:
        _print_models(listing)
    raise Exit(int(listing.error is not None))


@remote.command("rm")
@_name
@option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def rm(name: str, yes: bool) -> None:
    """Remove a server from settings.toml."""
    server = _server(name)
    print(f"{flat(name)}  {flat(server.url)}")
    if not yes:
        confirm("Remove it?", "Nothing was removed", "Add --yes to remove it.")
    settings.change(("remotes", name), None)
    forget_speeds(name)
    print(flat(f"Removed {name} from {settings.settings_file()}."))


def _try_model(name: str, *, json: bool) -> int:
    import asyncio

    from edgechat.engine.remote.choice import remote_plan

    try:
        config = settings.load()
        plan = remote_plan(name, config)
        assert plan is not None
        _, (timings,) = asyncio.run(answered(plan, config, _TRIAL_TOKENS))
    except EdgechatError as error:
        if json:
            print_json({"name": name, "error": error.message, "ttft_ms": None, "decode_tps": None})
        else:
            complain(error.message, error.hint)
        return 1
    if json:
        speeds = {"ttft_ms": round(timings.ttft_ms, 1), "decode_tps": round(timings.decode_tps, 2)}
        print_json({"name": name, "error": None, **speeds})
    else:
        rate = figure(timings.decode_tps)
        print(flat(f"{name} answers: first token after {timings.ttft_ms:.0f} ms, {rate} tokens/s."))
    return 0


async def answered(
    plan: LoadPlan, config: Settings, tokens: int, rounds: int = 1, show: Callable[[str], None] | None = None
) -> tuple[LoadPlan, list[Timings]]:
    """Have a remote model generate `tokens` tokens, `rounds` times, and time it.

    Returns the plan, updated with what the server reports, and the timings. Raises EdgechatError.
    """
    from edgechat.engine.remote.choice import remote_engine
    from edgechat.engine.types import ChatRequest, Finished, Message

    engine = remote_engine(plan, config, idle_seconds=0, on_note=note)
    timings: list[Timings] = []
    try:
        await engine.start()
        for number in range(rounds):
            if show is not None:
                show(f"answer {number + 1} of {rounds}")
            # Each prompt starts differently, to keep the server's cache from speeding it up.
            question = f"{number + 1}. {_TRIAL}" if rounds > 1 else _TRIAL
            request = ChatRequest(id="trial", messages=(Message("user", question),), max_tokens=tokens)
            async with aclosing(engine.stream(request)) as events:
                timings += [event.timings async for event in events if isinstance(event, Finished)]
    finally:
        await engine.close()
    return engine.plan, timings


def _print_models(listing: RemoteListing) -> None:
    from edgechat.models.remote.discovery import UNNAMED
    from edgechat.models.remote.listing import rows_of

    assert listing.kind is not None
    n_models = len(listing.models)
    models = f"{n_models} model{'s' * (n_models != 1)}"
    print(f"{flat(listing.server)} works: {KINDS[listing.kind]}, {models}.")
    for row in rows_of([listing]):
        facts = [f"{row.model.context:,} tokens of context"] if row.model.context else []
        facts += ["sees images"] if row.model.sees else []
        if row.speed is not None:
            facts.append(f"{row.speed.ttft_ms:.0f} ms to the first token")
            facts.append(f"{figure(row.speed.decode_tps)} tokens/s")
        print(f"  {flat(row.model.name)}{': ' * bool(facts)}{', '.join(facts)}")
        if row.model.id == UNNAMED:
            name = flat(listing.server)
            print(f"It does not list its models. If you know the name of one: edgechat run {name}/MODEL")


def _free_name(url: str, remotes: dict[str, RemoteServer]) -> str:
    """Return an unused name for a server, derived from its host."""
    host = urlsplit(url).hostname or ""
    try:
        ipaddress.ip_address(host)
        host = "here" if is_loopback(url) else "remote"
    except ValueError:
        host = "here" if host == "localhost" else host.removeprefix("api.").partition(".")[0]
    base = re.sub(r"[^A-Za-z0-9_-]", "", host)[:30].strip("-_") or "remote"
    names = [base, *(f"{base}-{number}" for number in range(2, len(remotes) + 3))]
    return next(name for name in names if name not in remotes)


def _server(name: str) -> RemoteServer:
    remotes = settings.load().remotes
    if name not in remotes:
        raise SettingsError(
            f"There is no remote {one_line(name, 60)!r}.", hint="To list them: edgechat remote list"
        )
    return remotes[name]


def _key(server: RemoteServer) -> str:
    if server.key_env is not None:
        missing = "" if os.environ.get(server.key_env) else ", which is not set"
        return f"key in ${flat(server.key_env)}{missing}"
    return "key in settings.toml" if server.key is not None else "no key"


def _as_json(name: str, server: RemoteServer) -> dict[str, Any]:
    keys = {"key_env": server.key_env, "has_key": server.key is not None}
    return {"name": name, "url": server.url, "kind": server.kind, **keys}


def _model_as_json(model: msgspec.Struct) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(model)
    del told["server"], told["url"], told["kind"], told["chats"]
    return told
