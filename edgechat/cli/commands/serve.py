"""`edgechat serve`: start the server, and shut it down on a signal."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shlex
import socket
import sys
from typing import TYPE_CHECKING

from edgechat import settings
from edgechat.base import logs, paths
from edgechat.base.errors import BackendMissing, EdgechatError, SettingsError
from edgechat.base.network.offline import OFFLINE_OPTION, offline_by
from edgechat.base.text import one_line
from edgechat.cli import completion
from edgechat.cli.declaring import TEXT, Debug, Number, argument, command, option
from edgechat.cli.options import MOST, LoadOptions, load_options
from edgechat.cli.terminal_io import complain, note
from edgechat.models.formats.header import ModelKind
from edgechat.models.remote.model import KINDS

if TYPE_CHECKING:
    from edgechat.chat.storage.store import ResponseStore
    from edgechat.planner.plan import LoadPlan
    from edgechat.server.access import AccessRules, Key
    from edgechat.server.documents import RequestDocuments
    from edgechat.server.media import RequestMedia
    from edgechat.server.pool.pool import Pool

_ORIGIN = re.compile(r"(https?|[a-z][a-z0-9+-]*)://([a-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?")
_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,252}|\[[0-9a-f:.]+\]")
PACKAGES = ("starlette", "uvicorn", "h11", "prometheus_client")
_LEAST_KEY = 16
"""Minimum length of an API key, in characters, if other machines can reach the server."""


@command(
    "serve",
    epilog="Clients of the OpenAI API connect to http://127.0.0.1:8484/v1 with the key that the first start "
    "generates. Ctrl+C lets answers in progress finish; a second Ctrl+C stops at once.",
    offline=True,
)
@argument(
    "model",
    type=TEXT,
    required=False,
    metavar="MODEL",
    help="The model that answers as 'default': a name shown by `edgechat list`, a GGUF file or an "
    "MLX folder. Default: the model that the app would open with. Requests can name any other "
    "model on this machine.",
    complete=completion.local_models,
)
@option(
    "--host",
    default="127.0.0.1",
    help="The address to listen on. If other machines can reach it, a key is always required.",
)
@option(
    "--port",
    type=Number(int, min=0, max=65535),
    help="The port to listen on; 0 chooses a free one.",
    show_default="8484",
)
@option(
    "--ollama",
    is_flag=True,
    help="Listen where programs for Ollama look: on port 11434, without a key unless --api-key is given.",
)
@option(
    "--api-key",
    metavar="KEY",
    help="The API key to require instead of the generated one. Prefer EDGECHAT_API_KEY: other users "
    "of the machine can see command lines.",
)
@option("--no-api-key", is_flag=True, help="Require no key: any program on this machine can use the server.")
@option(
    "--cors",
    multiple=True,
    type=TEXT,
    metavar="ORIGIN",
    help="Accept requests from web pages of this origin, such as https://example.org; can be repeated.",
)
@option(
    "--allow-host",
    multiple=True,
    type=TEXT,
    metavar="NAME",
    help="Also accept requests for this host name, with any port, such as the name that containers "
    "or a proxy use; can be repeated.",
)
@option("--ctx", type=Number(int, min=1, max=MOST), help="Context length in tokens, shared by all requests.")
@load_options()
@option(
    "--grace",
    type=Number(float, min=0, max=3600),
    default=6.0,  # containers are killed 10 s after the signal, and the shutdown itself takes a few seconds
    help="Seconds that answers in progress have to finish when the server stops.",
)
@option(
    "--strict",
    is_flag=True,
    help="Refuse request fields that have no effect, such as those that clients copy from earlier answers.",
)
@option(
    "--store-responses",
    is_flag=True,
    help="Store the responses of /v1/responses in the database of conversations, so that clients can "
    "continue them by previous_response_id: for 30 days, at most 1,000 responses and 64 MiB.",
)
@option(
    "--docs",
    multiple=True,
    type=TEXT,
    metavar="NAME",
    help="Let requests use these documents, by the field `docs`; all: any of them; can be "
    "repeated. `edgechat docs list` lists them.",
    complete=completion.documents,
)
@option(
    "--fetch-images",
    is_flag=True,
    help="Fetch images that requests name by their address: from public addresses only, at most 32 MiB each.",
)
@option("--verbose", "-v", is_flag=True, help="Print a line for each request, without its contents.")
def serve(
    model: str | None,
    host: str,
    port: int | None,
    ollama: bool,
    api_key: str | None,
    no_api_key: bool,
    cors: tuple[str, ...],
    allow_host: tuple[str, ...],
    ctx: int | None,
    load: LoadOptions,
    grace: float,
    strict: bool,
    store_responses: bool,
    docs: tuple[str, ...],
    fetch_images: bool,
    verbose: bool,
) -> None:
    """Serve models to editors, scripts and agents on this machine, as OpenAI, Anthropic and Ollama do."""
    import asyncio

    load.require_model(model)
    if model is not None:
        model = load.name(model)
    request = load.request(context=ctx)
    if port is None:
        port = 11434 if ollama else 8484
    no_api_key = no_api_key or (ollama and api_key is None)
    _need_packages()
    _check_network(fetch_images=fetch_images)
    logs.to_terminal(verbose=verbose, debug=Debug.on)
    from edgechat.chat.storage.store import ResponseStore, store_path
    from edgechat.documents import registry
    from edgechat.server.access import AccessRules
    from edgechat.server.documents import ALL, RequestDocuments
    from edgechat.server.media import ImageFetcher, RequestMedia
    from edgechat.server.pool.available_models import first_model
    from edgechat.server.pool.pool import prepare_model, real_pool
    from edgechat.server.serving import is_loopback, listen

    for name in docs:
        if name != ALL:
            registry.open_collection(name).close()
    think = settings.load().think
    origins, aliases = frozenset(map(_origin, cors)), frozenset(map(_alias, allow_host))
    with contextlib.closing(listen(host, port)) as listener:
        choice = asyncio.run(first_model(model))
        if choice.note is not None:
            note(choice.note)
        name = choice.model
        pool = real_pool(name, request, on_note=note)
        # Plan before generating and showing a key, since the command ends if the model cannot be loaded.
        plan = prepare_model(request, name, name)
        key = _key(listener, host, api_key, required=not no_api_key)
        hosts = frozenset() if is_loopback(listener) else _own_names(host)
        rules = AccessRules(key.text if key else None, hosts, origins, aliases)
        # This is safe, since a store is tied to its own thread, not to an event loop.
        store = asyncio.run(ResponseStore.open(store_path())) if store_responses else None
        logged = not sys.stdout.isatty()
        print(first_screen(name, listener, key, kind=plan.kind, logged=logged), flush=True)
        fetcher = ImageFetcher() if fetch_images else None
        media = RequestMedia(paths.cache_dir() / "request-images", fetcher=fetcher)
        documents = RequestDocuments(docs)
        pool.on_busy = documents.models_busy
        asyncio.run(
            _serve(pool, rules, media, documents, store, listener, think=think, strict=strict, grace=grace)
        )


async def _serve(
    pool: Pool,
    rules: AccessRules,
    media: RequestMedia,
    documents: RequestDocuments,
    store: ResponseStore | None,
    listener: socket.socket,
    *,
    think: bool | None,
    strict: bool,
    grace: float,
) -> None:
    """Serve until a signal arrives.

    grace: number of seconds that answers in progress are given to finish.
    """
    import asyncio

    from edgechat.server.app import make_app
    from edgechat.server.operation import Services
    from edgechat.server.serving import Server

    async def drain() -> None:
        with contextlib.suppress(OSError):  # the terminal may have been closed
            message = "Stopping after the answers in progress; press Ctrl+C again to stop at once."
            print(message, file=sys.stderr, flush=True)
        await pool.drain(grace)
        await pool.close()  # stops any remaining answers and notifies their clients

    try:
        async with pool:
            services = Services(pool, media, documents, think, strict, store)
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
    """Load the default model without waiting for a request. /health also reports any error."""
    try:
        async with pool.serve() as served:
            _print_plan(served.plan)
    except EdgechatError as error:
        complain(error.message, error.hint)


def _need_packages() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        are = "are" if len(missing) > 1 else "is"
        from edgechat.cli.findings import install

        command = install('"edgechat[server]"', archive="this system and CPU")
        raise BackendMissing(
            f"edgechat serve requires {' and '.join(missing)}, which {are} not installed.",
            hint=f"To install:\n{command}",
        )


def _check_network(*, fetch_images: bool) -> None:
    """Raise SettingsError if --fetch-images is used while edgechat is offline."""
    switch = offline_by()
    if fetch_images and switch is not None:
        hint = "Omit one of them." if switch == OFFLINE_OPTION else f"Omit it, or unset {switch}."
        raise SettingsError(
            f"--fetch-images needs the network, and {switch} keeps edgechat offline.", hint=hint
        )


def _key(listener: socket.socket, host: str, given: str | None, *, required: bool) -> Key | None:
    """Return the API key to require, or None for no key. Raises SettingsError if that would be unsafe."""
    from edgechat.server.access import find_key
    from edgechat.server.serving import is_loopback

    if not required and given is not None:
        raise SettingsError("--api-key cannot be used together with --no-api-key.", hint="Omit one of them.")
    local = is_loopback(listener)
    if not required and not local:
        raise SettingsError(
            f"Other machines can reach {host}, so the server requires a key.",
            hint="Omit --no-api-key, or listen only on this machine: --host 127.0.0.1",
        )
    if not required:
        return None
    key = find_key(given)
    if not local and len(key.text) < _LEAST_KEY:
        raise SettingsError(
            f"Other machines can reach {host}, and this key is too easy to guess.",
            hint=f"Use a key of at least {_LEAST_KEY} characters, or omit it: edgechat then uses its "
            "generated key.",
        )
    return key


def _origin(text: str) -> str:
    """Return an origin in the form that browsers send. Raises SettingsError if it is invalid."""
    origin = text.strip().lower().removesuffix("/")
    if _ORIGIN.fullmatch(origin) is None:
        raise SettingsError(
            f"--cors {one_line(text, 80)} is not the origin of a web page.",
            hint="Give one origin for each --cors, for example: --cors https://example.org",
        )
    return origin


def _alias(text: str) -> str:
    """Return a host name in the form used in Host headers. Raises SettingsError if it is invalid."""
    name = text.strip().lower()
    if _NAME.fullmatch(name) is None:
        raise SettingsError(
            f"--allow-host {one_line(text, 80)} is not a host name.",
            hint="Give only the name, without http:// and port: --allow-host nas.lan",
        )
    return name


def _own_names(host: str) -> frozenset[str]:
    """Return the host names that other machines might use for this one."""
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


# The first screen shows the address, and commands to paste into this shell.

_EXAMPLES: dict[ModelKind, tuple[str, str]] = {
    "chat": (
        "chat/completions",
        '{"model": "default", "messages":\n      [{"role": "user", "content": "Hello"}]}',
    ),
    "embedding": ("embeddings", '{"model": "default", "input": "Hello"}'),
    "reranking": (
        "rerank",
        '{"model": "default", "query": "Hello",\n      "documents": ["Hello there", "Goodbye"]}',
    ),
}


def first_screen(
    name: str, listener: socket.socket, key: Key | None, *, kind: ModelKind, logged: bool = False
) -> str:
    """Return the first screen. It includes the key only if the key is new and the output is not logged.

    Commands are at most 60 columns wide, not counting paths and keys.

    kind: the kind of the default model. logged: whether the output is stored, for example in a journal.
    """
    from edgechat.server.serving import is_loopback, url_for_others, url_of

    url = url_of(listener)
    lines = [f"Serving {one_line(name)} at {url}/v1; press Ctrl+C to stop."]
    if not is_loopback(listener):
        url_there = url_for_others(listener)
        lines.append(f"Other machines can reach it at {url_there}/v1. Connections are not encrypted:")
        lines.append("on an untrusted network, put a proxy with TLS in front of it.")
    if key is not None and key.is_new and logged:
        lines += ["", "The API key was generated and stored in", f"{key.file}."]
    elif key is not None and key.is_new:
        lines += ["", "The API key was generated. It is shown only this once, and stored in"]
        lines += [f"{key.file}:", f"  {key.text}"]
    lines += [
        "",
        "For programs that use OpenAI's client:",
        _setting("OPENAI_BASE_URL", f'"{url}/v1"'),
        _setting("OPENAI_API_KEY", _key_expression(key)),
        "",
        "To try it:",
        _example_request(has_key=key is not None, kind=kind),
        "",
    ]
    return "\n".join(lines)


def _example_request(*, has_key: bool, kind: ModelKind) -> str:
    path, body = _EXAMPLES[kind]
    if sys.platform == "win32":  # PowerShell has a different curl, and its quoting breaks JSON
        command = f'Invoke-RestMethod "$env:OPENAI_BASE_URL/{path}" -Method Post'
        authorization = '-Headers @{Authorization = "Bearer $env:OPENAI_API_KEY"}'
        options = ["-ContentType application/json", f"-Body '{body}'"]
        line_end = " `\n    "
    else:
        command = f'curl "$OPENAI_BASE_URL/{path}"'
        authorization = '-H "Authorization: Bearer $OPENAI_API_KEY"'
        options = ['-H "Content-Type: application/json"', f"-d '{body}'"]
        line_end = " \\\n    "
    return "  " + line_end.join([command, *([authorization] if has_key else []), *options])


def _setting(name: str, value: str) -> str:
    return f"  $env:{name} = {value}" if sys.platform == "win32" else f"  export {name}={value}"


def _key_expression(key: Key | None) -> str:
    """Return a shell expression that reads the key, to keep the key itself out of the shell's history."""
    if key is None:
        return '"none"'
    if sys.platform == "win32":
        if key.file is not None:
            return f"(Get-Content {_powershell_quoted(str(key.file))})"
        return f"$env:{key.variable}" if key.variable else _powershell_quoted(key.text)
    if key.file is not None:
        return f'"$(cat {shlex.quote(str(key.file))})"'
    return f'"${key.variable}"' if key.variable else shlex.quote(key.text)


def _powershell_quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
