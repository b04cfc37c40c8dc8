"""`edgechat serve`: starts the server, and shuts it down."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import re
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgechat import settings
from edgechat.base import logs, paths
from edgechat.base.errors import BackendMissing, EdgechatError, SettingsError
from edgechat.base.network.offline import OFFLINE_OPTION, offline_by
from edgechat.base.text import one_line
from edgechat.cli.options import Debug
from edgechat.cli.output.remedies import install
from edgechat.cli.output.server_banner import first_screen
from edgechat.cli.terminal_io import complain, note
from edgechat.models.remote.model import KINDS
from edgechat.planner.plan import LoadPlan
from edgechat.planner.request import DEFAULT_REQUEST, PlanRequest

if TYPE_CHECKING:
    from edgechat.chat.storage.response_store import ResponseStore
    from edgechat.server.access import AccessRules, Key
    from edgechat.server.documents import RequestDocuments
    from edgechat.server.media import RequestMedia
    from edgechat.server.pool.pool import Pool

_ORIGIN = re.compile(r"(https?|[a-z][a-z0-9+-]*)://([a-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?")
_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,252}|\[[0-9a-f:.]+\]")
PACKAGES = ("starlette", "uvicorn", "h11", "prometheus_client")
_LEAST_KEY = 16
"""Characters that a key must have if other machines can reach the server."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of the command line; None means that one was not given."""

    model: str | None = None
    request: PlanRequest = DEFAULT_REQUEST
    """How models are to be loaded."""
    host: str = "127.0.0.1"
    port: int = 8484
    api_key: str | None = None
    no_api_key: bool = False
    cors: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    grace: float = 6.0
    """Seconds. Containers are killed ten seconds after the signal, and the shutdown itself takes some."""
    strict: bool = False
    store_responses: bool = False
    docs: tuple[str, ...] = ()
    fetch_images: bool = False
    verbose: bool = False


def run(options: ServeOptions) -> None:
    """Run the command until it is stopped. Raises EdgechatError."""
    _need_packages()
    _check_network(options)
    logs.to_terminal(verbose=options.verbose, debug=Debug.on)
    from edgechat.chat.storage.response_store import ResponseStore
    from edgechat.chat.storage.store import store_path
    from edgechat.documents import registry
    from edgechat.server.access import AccessRules
    from edgechat.server.documents import ALL, RequestDocuments
    from edgechat.server.media import ImageFetcher, RequestMedia
    from edgechat.server.pool.available_models import first_model
    from edgechat.server.pool.pool import prepare_model, real_pool
    from edgechat.server.serving import is_loopback, listen

    for name in options.docs:
        if name != ALL:
            registry.open_collection(name).close()
    think = settings.load().think
    origins, aliases = frozenset(map(_origin, options.cors)), frozenset(map(_alias, options.names))
    with contextlib.closing(listen(options.host, options.port)) as listener:
        choice = asyncio.run(first_model(options.model))
        if choice.note is not None:
            note(choice.note)
        name = choice.model
        pool = real_pool(name, options.request, on_note=note)
        # Before a key is generated and shown: a model that cannot be loaded ends the command.
        plan = prepare_model(options.request, name, name)
        key = _key(options, listener)
        hosts = frozenset() if is_loopback(listener) else _own_names(options.host)
        rules = AccessRules(key.text if key else None, hosts, origins, aliases)
        # Its own thread, not a loop, is what a store belongs to.
        store = asyncio.run(ResponseStore.open(store_path())) if options.store_responses else None
        logged = not sys.stdout.isatty()
        print(first_screen(name, listener, key, kind=plan.kind, logged=logged), flush=True)
        fetcher = ImageFetcher() if options.fetch_images else None
        media = RequestMedia(paths.cache_dir() / "request-images", fetcher=fetcher)
        documents = RequestDocuments(options.docs)
        pool.on_busy = documents.models_busy
        asyncio.run(_serve(options, think, listener, rules, pool, media, documents, store))


async def _serve(
    options: ServeOptions,
    think: bool | None,
    listener: socket.socket,
    rules: AccessRules,
    pool: Pool,
    media: RequestMedia,
    documents: RequestDocuments,
    store: ResponseStore | None,
) -> None:
    from edgechat.server.app import make_app
    from edgechat.server.operation import Services
    from edgechat.server.serving import Server

    async def drain() -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone
            message = "Stopping after the answers in progress; press Ctrl+C again to stop at once."
            print(message, file=sys.stderr, flush=True)
        await pool.drain(options.grace)
        await pool.close()  # stops the answers that take longer, and says so to their clients

    try:
        async with pool:
            services = Services(pool, media, documents, think, options.strict, store)
            app = make_app(services, rules)
            loading = asyncio.ensure_future(_load(pool))
            pruning = asyncio.ensure_future(asyncio.to_thread(media.prune))
            await Server(app, drain=drain).serve(sockets=[listener])
            loading.cancel()
            await asyncio.wait([loading, pruning])
    finally:
        await documents.close()
        if store is not None:
            await store.close()


async def _load(pool: Pool) -> None:
    """Load the default model before the first request; /health reports errors, too."""
    try:
        async with pool.serve() as served:
            _print_plan(served.plan)
    except EdgechatError as error:
        complain(error.message, error.hint)


def _need_packages() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        are = "are" if len(missing) > 1 else "is"
        command = install('"edgechat[server]"', archive="this system and CPU")
        raise BackendMissing(
            f"edgechat serve requires {' and '.join(missing)}, which {are} not installed.",
            hint=f"To install:\n{command}",
        )


def _check_network(options: ServeOptions) -> None:
    """Raise SettingsError if images are to be fetched without a network."""
    switch = offline_by()
    if options.fetch_images and switch is not None:
        hint = "Omit one of them." if switch == OFFLINE_OPTION else f"Omit it, or unset {switch}."
        raise SettingsError(
            f"--fetch-images needs the network, and {switch} keeps edgechat offline.", hint=hint
        )


def _key(options: ServeOptions, listener: socket.socket) -> Key | None:
    """Return the API key to require, or None. Raises SettingsError if strangers could get in."""
    from edgechat.server.access import find_key
    from edgechat.server.serving import is_loopback

    if options.no_api_key and options.api_key is not None:
        raise SettingsError("--api-key cannot be used together with --no-api-key.", hint="Omit one of them.")
    local = is_loopback(listener)
    if options.no_api_key and not local:
        raise SettingsError(
            f"Other machines can reach {options.host}, so the server requires a key.",
            hint="Omit --no-api-key, or listen only on this machine: --host 127.0.0.1",
        )
    if options.no_api_key:
        return None
    key = find_key(options.api_key)
    if not local and len(key.text) < _LEAST_KEY:
        raise SettingsError(
            f"Other machines can reach {options.host}, and this key is too easy to guess.",
            hint=f"Use a key of at least {_LEAST_KEY} characters, or omit it: edgechat then uses its "
            "generated key.",
        )
    return key


def _origin(text: str) -> str:
    """Return an origin as browsers send it. Raises SettingsError if it is not valid."""
    origin = text.strip().lower().removesuffix("/")
    if _ORIGIN.fullmatch(origin) is None:
        raise SettingsError(
            f"--cors {one_line(text, 80)} is not the origin of a web page.",
            hint="Give one origin for each --cors, for example: --cors https://example.org",
        )
    return origin


def _alias(text: str) -> str:
    """Return a host name as in the header Host. Raises SettingsError if it is not valid."""
    name = text.strip().lower()
    if _NAME.fullmatch(name) is None:
        raise SettingsError(
            f"--allow-host {one_line(text, 80)} is not a host name.",
            hint="Give only the name, without http:// and port: --allow-host nas.lan",
        )
    return name


def _own_names(host: str) -> frozenset[str]:
    """Return the names by which other machines may address this one."""
    own = socket.gethostname().lower()
    return frozenset({own, f"{own.partition('.')[0]}.local", host.lower()})


def _print_plan(plan: LoadPlan) -> None:
    for text in plan.notes:
        note(text)
    if plan.remote is not None and plan.program is None:
        where = f"{KINDS[plan.remote.kind]} at {plan.remote.url}"
        print(one_line(f"{plan.model_name} answers: {where}, {plan.context} tokens of context."), flush=True)
        return
    name, quant = plan.model_name, plan.quant or ""
    if quant.casefold() not in name.casefold():
        name = f"{name} {quant}"
    capacity = f"{plan.context} tokens of context, up to {plan.n_seq_max} requests at once"
    by = plan.backend if plan.program is None else plan.program.engine
    print(one_line(f"{name} is loaded with {by}: {capacity}."), flush=True)
