"""What we need of uvicorn's private connection, and of h11's: whoever raises a bound runs this first."""

import ast
import asyncio
import importlib.metadata
import inspect
import textwrap
import tomllib
from pathlib import Path

import h11
import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from edgechat.server.connection import Connection, _Requests
from edgechat.server.serving import Server

ROOT = Path(__file__).parents[3]


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self):
        super().__init__()
        self.written = b""
        self.closing = False

    def write(self, data):
        self.written += data

    def is_closing(self):
        return self.closing

    def close(self):
        self.closing = True

    abort = close

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


async def app(scope, receive, send):
    """Answer when the whole body is there."""
    while (await receive())["more_body"]:
        pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def connected():
    config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None)
    transport, connection = Transport(), Connection(config=config, server_state=ServerState(), app_state={})
    connection.connection_made(transport)
    return connection, transport


@pytest.mark.parametrize("name", ["uvicorn", "h11"])
def test_what_is_private_has_a_bound_above(name):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [said] = [one for one in extras["server"] if one.startswith(name)]
    lowest, _, bound = said.removeprefix(name).partition(",")
    pinned = (ROOT / "packaging" / "constraints.txt").read_text().split()
    version = importlib.metadata.version(name)
    assert f"{name}=={version}" in pinned
    major, minor = (int(one) for one in version.split(".")[:2])
    assert (lowest, bound) == (f">={major}.{minor}", f"<{major}.{minor + 1}")


@pytest.mark.parametrize(
    ("ours", "theirs"), [(Connection, H11Protocol), (_Requests, h11.Connection), (Server, uvicorn.Server)]
)
def test_what_we_take_over_is_there_and_takes_the_same(ours, theirs):
    names = [one for one, what in vars(ours).items() if inspect.isfunction(what) and not one.startswith("_")]
    known = [one for one in names if hasattr(theirs, one)]
    assert names == known
    assert len(known) > 0
    for name in known:
        assert parameters(ours, name) == parameters(theirs, name), name


def parameters(kind, name):
    """Return a method's parameters as they are written: clients' SDKs exchange some of uvicorn's methods."""
    owner = next(one for one in kind.__mro__ if name in vars(one))
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    arguments = next(one.args for one in functions if one.name == name)
    return [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


async def test_a_request_goes_through_the_states_that_we_look_at():
    connection, transport = connected()
    assert connection.cycle is None
    assert connection.scope is None
    assert connection in connection.connections
    connection.data_received(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n")
    cycle = connection.cycle
    assert isinstance(cycle, RequestResponseCycle)
    assert (cycle.response_complete, cycle.disconnected) == (False, False)
    assert (connection.conn.their_state, connection.conn.our_state) == (h11.SEND_BODY, h11.SEND_RESPONSE)
    assert connection._is_asking()
    assert not connection._is_answering()
    connection.data_received(b"{}")
    assert connection.conn.their_state is h11.DONE
    assert connection._is_answering()
    while not cycle.response_complete:
        await asyncio.sleep(0)
    assert transport.written.startswith(b"HTTP/1.1 204 ")
    assert (connection.conn.their_state, connection.conn.our_state) == (h11.IDLE, h11.IDLE)
    connection.timeout_keep_alive_task.cancel()
    transport.written = b""
    connection.data_received(b"no request\r\n\r\n")
    assert transport.written.startswith(b"HTTP/1.1 400 ")
    assert transport.closing
    connection.connection_lost(None)
    assert connection not in connection.connections


async def test_h11_keeps_what_was_sent_ahead_where_we_look():
    requests = _Requests()
    requests.receive_data(b"GET / HTTP/1.1\r\n")
    assert requests.trailing_data == (b"GET / HTTP/1.1\r\n", False)
    assert requests.next_event() is h11.NEED_DATA
    requests.receive_data(b"Host: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    request = requests.next_event()
    assert isinstance(request, h11.Request)
    assert {name for name, _ in request.headers} == {b"host", b"transfer-encoding"}
    assert request.http_version == b"1.1"
    requests.receive_data(b"1\r\nx\r\n")
    chunk = requests.next_event()
    assert isinstance(chunk, h11.Data)
    assert (bytes(chunk.data), chunk.chunk_start) == (b"x", True)
