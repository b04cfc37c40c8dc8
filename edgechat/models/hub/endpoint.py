"""The hub's address, which host gets the token, and whether the network may be used."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from edgechat.base.errors import HubAnswerError, OfflineMode, SettingsError
from edgechat.base.network.offline import OFFLINE_OPTION, offline_by
from edgechat.base.text import one_line

DEFAULT = "https://huggingface.co"
_NUMERIC_HOST = re.compile(r"[0-9a-fx.]+", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The URL of the hub or of a mirror, without a trailing slash."""

    url: str

    def info(self, repo: str, revision: str | None) -> str:
        """Return the API URL of a repository, with sizes and hashes of its files."""
        at = f"/revision/{quote(revision, safe='')}" if revision else ""
        return f"{self.url}/api/models/{repo}{at}?blobs=true"

    def file(self, repo: str, commit: str, name: str) -> str:
        """Return the URL of a file at a commit."""
        return f"{self.url}/{repo}/resolve/{quote(commit, safe='')}/{quote(name)}"

    def page(self, repo: str) -> str:
        """Return the URL of the repository's page."""
        return f"{self.url}/{repo}"

    def may_see_token(self, url: str) -> bool:
        """Return whether `url` has the hub's own scheme, host and port."""
        return _origin(urlsplit(url)) == _origin(urlsplit(self.url))


def endpoint() -> Endpoint:
    """Return the hub that HF_ENDPOINT names, or huggingface.co. Raises SettingsError."""
    text = (os.environ.get("HF_ENDPOINT") or DEFAULT).rstrip("/")
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = None
    if not valid or "@" in text or "?" in text or "#" in text or not text.isprintable():
        raise SettingsError(
            f"HF_ENDPOINT is {one_line(text, 80)!r}, which is not the URL of a hub.",
            hint=f"Set it to a URL like {DEFAULT}, or unset it.",
        )
    return Endpoint(text)


def require_network(offline: bool, what: str) -> None:
    """Raise OfflineMode if the network must not be used. what: begins the sentence: 'x/y was never …'."""
    reason = offline_by()
    if reason:
        option = reason == OFFLINE_OPTION
        hint = (
            f"Run the same command without {reason}."
            if option
            else f"To allow it once: {reason}=0 edgechat …"
        )
        raise OfflineMode(f"{what}, and {reason} keeps edgechat offline.", hint=hint)
    if offline:
        raise OfflineMode(f"{what}, and edgechat is offline.", hint="Allow the network, and try again.")


def next_address(url: str, location: str) -> str:
    """Return the target of a redirect from `url`.

    Raises HubAnswerError for an address that is none, for one that gives up encryption, for one that leads
    from elsewhere to this machine, where it would reach what no stranger may, and for one where no other host
    keeps files: of the link, which in clouds gives out keys, of a group, or reserved.
    """
    try:
        target = urljoin(url, location)
        source, destination = urlsplit(url), urlsplit(target)
        valid = destination.scheme in ("http", "https") and destination.hostname and destination.port != 0
    except ValueError:
        valid = None
    if not valid or "@" in destination.netloc or not target.isprintable():
        raise _unsafe_redirect("to an invalid URL")
    host = one_line(destination.hostname or "", 80)
    local_only = _is_this_machine(source) and _is_this_machine(destination)
    if source.scheme == "https" and destination.scheme == "http" and not local_only:
        raise _unsafe_redirect(f"without encryption to {host}")
    if destination.hostname == source.hostname or local_only:
        return target
    if _is_this_machine(destination):
        raise _unsafe_redirect("to this machine")
    address = _address((destination.hostname or "").rstrip("."))
    if address is not None and (
        address.is_link_local or address.is_multicast or address.is_reserved or address.is_unspecified
    ):
        raise _unsafe_redirect(f"to {host}, which is not a host of the hub's files")
    return target


def _unsafe_redirect(where: str) -> HubAnswerError:
    return HubAnswerError(
        f"The hub redirects {where}; edgechat does not follow.",
        hint="If HF_ENDPOINT names a mirror, try without it; otherwise, check for a proxy.",
    )


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _is_this_machine(parts: SplitResult) -> bool:
    """Return whether the host is a loopback address or a name of one."""
    host = (parts.hostname or "").rstrip(".")
    address = _address(host)
    return host == "localhost" or host.endswith(".localhost") or (address is not None and address.is_loopback)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address of a host, in any notation: 127.1 is one too, and 0x7f000001."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if _NUMERIC_HOST.fullmatch(host) is None:
            return None
        try:
            return ipaddress.IPv4Address(socket.inet_aton(host))
        except OSError:
            return None
    return getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None) or address
