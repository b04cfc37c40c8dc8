"""Servers of llama.cpp: on this machine only, and an error where llama.cpp itself would end the process."""

import os
import signal
import socket

import pytest

from edgechat.base.errors import LoadFailed, ServerRefused
from edgechat.native.accelerators import rpc
from edgechat.native.accelerators.devices import read_inventory
from edgechat.native.handles import Model
from edgechat.native.params import LoadParams
from tests.kit import tiny
from tests.rpc_server import RpcServer, skip_without_rpc

pytestmark = pytest.mark.slow

MIB = 2**20


@pytest.mark.parametrize(
    "server",
    [
        "192.168.1.5:50052",
        "0.0.0.0:50052",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:0",
        "127.0.0.1:65536",
        "127.0.0.1:٣",
        "127.0.0.1:80:50052",
        "127.0.0.1.example.org:50052",
        "localhost.example.org:50052",
        "[::1]:50052",  # llama.cpp itself speaks IPv4 only
        ":50052",
        "",
    ],
)
def test_what_is_no_server_on_this_machine(server):
    with pytest.raises(ServerRefused, match=r"only 127\.0\.0\.1:PORT") as caught:
        rpc.check((server,))
    assert isinstance(caught.value, LoadFailed)
    with pytest.raises(ServerRefused):
        read_inventory(rpc=(server,))
    with pytest.raises(ServerRefused):
        Model(tiny(), LoadParams(context=512, rpc=(server,)))


def test_names_are_replaced_by_the_address():
    assert rpc.check(("localhost:7000", "127.0.0.1:07001", "127.0.0.1:7000")) == (
        "127.0.0.1:7000",
        "127.0.0.1:7001",
    )
    assert rpc.check(()) == ()


def test_inventory_with_servers(servers):
    addresses = tuple(server.address for server in servers)
    found = read_inventory(rpc=addresses[::-1])
    listed = {one.name: one for one in found.devices if one.backend == "RPC"}
    assert {name: one.description for name, one in listed.items()} == {
        "RPC0": addresses[1],
        "RPC1": addresses[0],
    }
    assert [(one.kind, one.free, one.total) for one in listed.values()] == [
        ("gpu", server.memory, server.memory) for server in servers[::-1]
    ]
    assert found.build == read_inventory().build


def test_without_servers_none_is_listed():
    assert all(one.backend != "RPC" for one in read_inventory().devices)


def test_nobody_there():
    skip_without_rpc()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(ServerRefused, match=f"No llama.cpp server answers at {address}"):
        read_inventory(rpc=(address,))


def test_a_server_that_is_busy_with_another():
    with RpcServer(8 * MIB) as server:
        host, _, port = server.address.partition(":")
        with (
            socket.create_connection((host, int(port))),
            pytest.raises(ServerRefused, match="busy with another program"),
        ):
            read_inventory(rpc=(server.address,))
        assert read_inventory(rpc=(server.address,)).devices


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="cannot stop a process")
def test_a_server_that_hangs():
    with RpcServer(8 * MIB) as server:
        os.kill(server.process.pid, signal.SIGSTOP)
        with pytest.raises(ServerRefused, match="does not respond"):
            read_inventory(rpc=(server.address,))


def test_one_list_of_servers_in_a_process(servers):
    """Names of devices follow the order of servers: another order would give them to others."""
    large, small = (server.address for server in servers)
    rpc.register((large, small))
    rpc.register((large, small))
    rpc.register((large,))
    rpc.register(())
    with pytest.raises(ServerRefused, match="started with other RPC servers"):
        rpc.register((small,))
    with pytest.raises(ServerRefused, match="started with other RPC servers"):
        rpc.register((small, large))


def test_a_server_that_we_hold_ourselves_is_not_busy(servers):
    ask = LoadParams(
        context=512, devices=("RPC0",), split=(2,), rpc=tuple(server.address for server in servers)
    )
    first = Model(tiny(), ask)
    try:
        Model(tiny("moe"), ask).close()
        with pytest.raises(ServerRefused, match="busy"):
            read_inventory(rpc=(servers[0].address,))
    finally:
        first.close()
    assert read_inventory(rpc=(servers[0].address,)).devices
