"""`edgechat serve`: the server's start, its first screen, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import re
import shlex
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgechat import settings
from edgechat.cli.edge import complain, note
from edgechat.cli.options import Debug
from edgechat.cli.remedies import install_extra
from edgechat.errors import BackendMissing, EdgechatError, SettingsError
from edgechat.planner.plan import LoadPlan
from edgechat.planner.wishes import Wishes
from edgechat.settings import Backend, Settings
from edgechat.text import one_line

if TYPE_CHECKING:
    from edgechat.server.guard import Door
    from edgechat.server.key import Key
    from edgechat.server.pool import Pool

_ORIGIN = re.compile(r"(https?|[a-z][a-z0-9+-]*)://([a-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?")
_PACKAGES = ("starlette", "uvicorn", "prometheus_client")
_OPEN_KEY = 16
"""Characters that a key has at least where others can reach the server."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said; None and empty mean that it said nothing."""

    model: str | None = None
    host: str = "127.0.0.1"
    port: int = 8484
    api_key: str | None = None
    no_api_key: bool = False
    cors: tuple[str, ...] = ()
    context: int | None = None
    draft: str | None = None
    backend: Backend | None = None
    anyway: bool = False
    grace: float = 30.0
    verbose: bool = False

    @property
    def wishes(self) -> Wishes:
        """How models are to be loaded."""
        return Wishes(context=self.context, draft=self.draft, backend=self.backend, anyway=self.anyway)


def run(options: Options) -> int:
    """Run the command until it is stopped; return the exit code. Raises EdgechatError."""
    _need_packages()
    if Debug.on:
        logging.getLogger("edgechat.server").setLevel(logging.DEBUG)
    from edgechat.server.guard import Door
    from edgechat.server.real import real_pool
    from edgechat.server.serving import is_loopback, listen
    from edgechat.server.shelf import first_model

    said = settings.load()
    origins = frozenset(map(_origin, options.cors))
    with contextlib.closing(listen(options.host, options.port)) as listener:
        key = _key(options, listener)
        hosts = frozenset() if is_loopback(listener) else _own_names(options.host)
        door = Door(key.text if key else None, hosts, origins)
        name = options.model or asyncio.run(first_model())
        pool = real_pool(name, options.wishes, on_note=note)
        _print_screen(name, listener, key)
        asyncio.run(_serve(options, said, listener, door, pool))
    return 0


async def _serve(options: Options, said: Settings, listener: socket.socket, door: Door, pool: Pool) -> None:
    from edgechat.server.app import make_app
    from edgechat.server.serving import Server

    async def drain() -> None:
        _tell("Stopping when what is being answered has ended; Ctrl+C again stops at once.")
        await pool.drain(options.grace)
        await pool.close()  # what takes longer is told that it was stopped

    async with pool:
        app = make_app(pool, door, think=said.think, tell=_tell if options.verbose else None)
        loading = asyncio.ensure_future(_load(pool))
        await Server(app, drain=drain).serve(sockets=[listener])
        loading.cancel()
        await asyncio.wait([loading])


async def _load(pool: Pool) -> None:
    """Load the default model ahead of the first request; what is wrong with it /health says too."""
    try:
        async with pool.serve() as served:
            _print_plan(served.plan)
    except EdgechatError as error:
        complain(error.message, error.hint)


def _need_packages() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise BackendMissing(
            f"edgechat serve needs {' and '.join(missing)}, which is not installed here.",
            hint=f"Install what it needs:\n{install_extra('server')}",
        )


def _key(options: Options, listener: socket.socket) -> Key | None:
    """Return the key to ask for; None for none. Raises SettingsError where that would let strangers in."""
    from edgechat.server.key import find_key
    from edgechat.server.serving import is_loopback

    if options.no_api_key and options.api_key is not None:
        raise SettingsError("--api-key and --no-api-key cannot both be.", hint="Leave one of them out.")
    local = is_loopback(listener)
    if options.no_api_key and not local:
        raise SettingsError(
            f"Other machines can reach {options.host}, so the server asks for a key there.",
            hint="Leave out --no-api-key, or listen on this machine alone: --host 127.0.0.1",
        )
    if options.no_api_key:
        return None
    key = find_key(options.api_key)
    if not local and len(key.text) < _OPEN_KEY:
        raise SettingsError(
            f"Other machines can reach {options.host}, and this key is soon guessed.",
            hint=f"Give one of {_OPEN_KEY} characters at least, or none: edgechat has one of its own.",
        )
    return key


def _origin(text: str) -> str:
    """Return an origin as browsers send it. Raises SettingsError for what is none."""
    origin = text.strip().lower().removesuffix("/")
    if _ORIGIN.fullmatch(origin) is None:
        raise SettingsError(
            f"--cors {one_line(text, 80)} is no origin of web pages.",
            hint="Name each by itself, as browsers do: --cors https://example.org",
        )
    return origin


def _own_names(host: str) -> frozenset[str]:
    """Return how other machines may call this one."""
    own = socket.gethostname().lower()
    return frozenset({own, f"{own.partition('.')[0]}.local", host.lower()})


def _print_screen(name: str, listener: socket.socket, key: Key | None) -> None:
    """Print what to type next. The key is shown once, when it is made."""
    from edgechat.server.serving import url_of

    url, shown = url_of(listener), _shown(key)
    asked = '{"model": "default", "messages": [{"role": "user", "content": "Hello"}]}'
    header = f' -H "Authorization: Bearer {shown}"' if key else ""
    lines = [f"Serving {one_line(name)} at {url}/v1 until Ctrl+C.", ""]
    if key is not None and key.is_new:
        lines += ["The key, made now and shown this once; it is kept in", f"{key.file}:", f"  {key.text}", ""]
    lines += [
        "Ask it:",
        f"  curl {url}/v1/chat/completions{header} \\",
        f"    -H 'Content-Type: application/json' -d '{asked}'",
        "",
        "Programs that use OpenAI's client:",
        f"  {_setting('OPENAI_BASE_URL', f'{url}/v1')}",
        f"  {_setting('OPENAI_API_KEY', shown)}",
        "",
    ]
    print("\n".join(lines), flush=True)


def _shown(key: Key | None) -> str:
    """Return the key as it stands in a command: itself when it is new, else where it is."""
    if key is None:
        return "none"
    if key.is_new:
        return key.text
    if key.file is None:
        return "$EDGECHAT_API_KEY"
    if sys.platform == "win32":
        return f"$(Get-Content '{key.file}')"
    return f"$(cat {shlex.quote(str(key.file))})"


def _setting(name: str, value: str) -> str:
    if sys.platform == "win32":
        return f'$env:{name} = "{value}"'
    return f'export {name}="{value}"'


def _print_plan(plan: LoadPlan) -> None:
    for told in plan.notes:
        note(told)
    name = " ".join(part for part in (plan.model_name, plan.quant) if part)
    each = f"{plan.context} tokens of context, up to {plan.n_seq_max} requests at once"
    print(one_line(f"{name} is loaded by {plan.backend}: {each}."), flush=True)


def _tell(line: str) -> None:
    with contextlib.suppress(OSError):  # whoever read it has gone; the server has not
        print(line, file=sys.stderr, flush=True)
