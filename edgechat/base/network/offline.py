"""Whether the network may be used: the offline switch, the proxies, and URLs that stay on this machine."""

from __future__ import annotations

import contextlib
import os
from importlib.util import find_spec

from edgechat.base.text import one_line

OFFLINE, OFFLINE_OPTION = "EDGECHAT_OFFLINE", "--offline"
"""edgechat's environment variable, which child processes inherit, and the value that --offline sets it to."""
_VARIABLES = (OFFLINE, "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_TRUE = frozenset({"1", "ON", "YES", "TRUE"})


def offline_by() -> str | None:
    """Return what disables the network ('--offline' or the name of a variable), or None."""
    if os.environ.get(OFFLINE) == OFFLINE_OPTION:
        return OFFLINE_OPTION
    return next((name for name in _VARIABLES if is_true(name)), None)


def is_true(variable: str) -> bool:
    """Return whether an environment variable counts as true by huggingface_hub's rules."""
    return os.environ.get(variable, "").strip().upper() in _TRUE


def is_loopback(url: str) -> bool:
    """Return whether a URL's host is this machine, without resolving names."""
    import ipaddress  # 3 ms, not needed without remotes
    from urllib.parse import urlsplit

    host = urlsplit(url).hostname or ""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


_USABLE = ("http", "https")
_SOCKS = ("socks5", "socks5h")


def unusable_proxy() -> tuple[str, str] | None:
    """Return why a proxy in the environment cannot be used, and a hint, or None if all can be used.

    httpx sets up all proxies for every request, so even a proxy for other addresses makes it raise ValueError
    or ImportError.
    """
    from urllib.request import getproxies  # 20 ms, not needed by commands that send no requests

    proxies = getproxies()
    if "*" in (one.strip() for one in proxies.get("no", "").split(",")):
        return None
    for scheme in ("https", "http", "all"):
        kind, found, rest = proxies.get(scheme, "").partition("://")
        kind = kind.lower()
        if not found or kind in _USABLE:
            continue
        name = f"{scheme.upper()}_PROXY"
        if kind in _SOCKS:
            if find_spec("socksio") is not None:
                continue
            why = f"{name} is a SOCKS proxy, for which the package socksio is missing"
            hint = "Name the proxy's HTTP port, as in http://127.0.0.1:8080, or: pip install socksio"
        elif kind == "socks":
            why = f"{name} begins with socks://, which does not say what kind of proxy it is"
            hint = f"Name its HTTP port, as in http://127.0.0.1:8080, or set it to socks5://{_address(rest)}"
        else:
            why = f"{name} begins with {one_line(kind, 20)}://, but a proxy must be http, https or socks5"
            hint = f"Correct it, or unset {name}."
        if scheme == "all" and proxies.get("https"):
            hint = "HTTPS_PROXY is enough: unset ALL_PROXY and all_proxy."
        return why, hint
    return None


def _address(rest: str) -> str:
    """Return a proxy's host and port, without its password."""
    return one_line(rest.rpartition("@")[2].rstrip("/"), 60)
