"""Addresses of workers: what ssh is given, and what never reaches its command line."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.base.network.lenders import SshHost, ssh_host
from tests.properties import examples


@pytest.mark.parametrize(
    ("address", "host", "user", "port", "program"),
    [
        ("ssh://gpu-box", "gpu-box", None, None, "edgechat"),
        ("ssh://gpu-box/", "gpu-box", None, None, "edgechat"),
        ("ssh://ada@gpu-box.lan:2222", "gpu-box.lan", "ada", 2222, "edgechat"),
        (
            "ssh://ada.l@10.0.0.7/opt/edgechat/bin/edgechat",
            "10.0.0.7",
            "ada.l",
            None,
            "/opt/edgechat/bin/edgechat",
        ),
        ("ssh://[fe80::1%eth0]:22", "fe80::1%eth0", None, 22, "edgechat"),
    ],
)
def test_what_an_address_says(address, host, user, port, program):
    assert ssh_host(address) == SshHost(address, host, user, port, program)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "gpu-box",
        "http://gpu-box",
        "ssh://",
        "ssh://-oProxyCommand=touch%20x",
        "ssh://-oProxyCommand=id",
        "ssh://-l@gpu-box",
        "ssh://-oProxyCommand=id@gpu-box",
        "ssh://gpu-box;id",
        "ssh://gpu-box/$(id)",
        "ssh://gpu-box/bin/edgechat;id",
        "ssh://gpu-box/bin/edge chat",
        "ssh://gpu-box\n",
        "ssh://gpu-box:0",
        "ssh://gpu-box:65536",
        "ssh://gpu-box:²",
        "ssh://ada:secret@gpu-box",
        "ssh://ada@@gpu-box",
        "ssh://gpü-box",
        "ssh://" + "a" * 300,
    ],
)
def test_what_is_no_address(address):
    assert ssh_host(address) is None


def test_the_command_ends_its_options_before_the_host():
    host = ssh_host("ssh://ada@gpu-box:2222/opt/edgechat")
    assert host is not None
    command = host.command(5000, 6000)
    assert command[command.index("--") :] == ["--", "gpu-box", "/opt/edgechat worker --port 6000"]
    assert command[command.index("-L") + 1] == "127.0.0.1:5000:127.0.0.1:6000"
    assert [command[command.index(option) + 1] for option in ("-l", "-p")] == ["ada", "2222"]
    assert {"BatchMode=yes", "ExitOnForwardFailure=yes"} <= set(command)


@given(st.text(st.characters(min_codepoint=1, max_codepoint=0x2FF), max_size=30))
@settings(max_examples=examples(300))
def test_no_text_becomes_an_option_or_reaches_a_shell(text):
    for address in (f"ssh://{text}", f"ssh://{text}@host", f"ssh://host/{text}"):
        host = ssh_host(address)
        if host is None:
            continue
        *_, name, remote = host.command(5000, 6000)
        assert not name.startswith("-")
        assert not (host.user or "").startswith("-")
        assert not set(f"{name}{remote}") & set("\n\r\t'\"`$&|;<>(){}*?!\\~#=")
        assert remote.split() == [host.program, "worker", "--port", "6000"]
