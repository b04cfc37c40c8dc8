"""Where the hub is, which host may see the token, and whether the network may be used at all."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from edgechat.errors import HubAnswerError, OfflineMode, SettingsError
from edgechat.text import one_line

DEFAULT = "https://huggingface.co"
_TRUE = frozenset({"1", "ON", "YES", "TRUE"})
_OFFLINE = ("EDGECHAT_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of the hub or of a mirror, without a slash at its end."""

    url: str

    def info(self, repo: str, revision: str | None) -> str:
        """Return the address of what the hub knows of a repository, with sizes and hashes of its files."""
        at = f"/revision/{quote(revision, safe='')}" if revision else ""
        return f"{self.url}/api/models/{repo}{at}?blobs=true"

    def file(self, repo: str, commit: str, name: str) -> str:
        """Return the address of a file as it was at a commit."""
        return f"{self.url}/{repo}/resolve/{quote(commit, safe='')}/{quote(name)}"

    def page(self, repo: str) -> str:
        """Return the address of the repository for a browser."""
        return f"{self.url}/{repo}"

    def may_see_token(self, url: str) -> bool:
        """Say whether `url` is on the hub's own host: same scheme, same name, same port."""
        return _origin(urlsplit(url)) == _origin(urlsplit(self.url))


def endpoint() -> Endpoint:
    """Return the hub that HF_ENDPOINT names, or the real one. Raises SettingsError where it is no address."""
    text = (os.environ.get("HF_ENDPOINT") or DEFAULT).rstrip("/")
    try:
        parts = urlsplit(text)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        sound = None
    if not sound or "@" in text or "?" in text or "#" in text or not text.isprintable():
        raise SettingsError(
            f"HF_ENDPOINT is {one_line(text, 80)!r}, which is not the address of a hub.",
            hint=f"Set it to an address like {DEFAULT}, or unset it.",
        )
    return Endpoint(text)


def offline_by() -> str | None:
    """Return the name of the environment variable that switches the network off, or None."""
    return next((name for name in _OFFLINE if is_true(name)), None)


def is_true(variable: str) -> bool:
    """Say whether an environment variable says yes, as huggingface_hub reads it."""
    return os.environ.get(variable, "").strip().upper() in _TRUE


def require_network(offline: bool, what: str) -> None:
    """Raise OfflineMode where the network may not be used. what: begins the sentence: 'x/y was never …'."""
    by = offline_by()
    if by:
        raise OfflineMode(
            f"{what}, and {by} keeps edgechat offline.", hint=f"Allow it once: {by}=0 edgechat …"
        )
    if offline:
        raise OfflineMode(f"{what}, and edgechat is offline.", hint="Allow the network, and try again.")


def next_address(url: str, location: str) -> str:
    """Return where a redirect from `url` leads.

    Raises HubAnswerError for an address that is none, for one that gives up encryption, and for one that
    leads from elsewhere to this machine, where it would reach what no stranger may.
    """
    try:
        found = urljoin(url, location)
        here, there = urlsplit(url), urlsplit(found)
        sound = there.scheme in ("http", "https") and there.hostname and there.port != 0
    except ValueError:
        sound = None
    if not sound or "@" in there.netloc or not found.isprintable():
        raise _astray("to what is no address")
    if here.scheme == "https" and there.scheme == "http" and not (_is_local(here) and _is_local(there)):
        raise _astray(f"without encryption to {one_line(there.hostname or '', 80)}")
    if _is_local(there) and not _is_local(here):
        raise _astray("to this machine itself")
    return found


def _astray(where: str) -> HubAnswerError:
    return HubAnswerError(
        f"The hub sends edgechat on {where}; it does not go there.",
        hint="If HF_ENDPOINT names a mirror, try without it; else a proxy may be in the way.",
    )


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _is_local(parts: SplitResult) -> bool:
    """Say whether an address is this machine or its immediate neighbourhood, as far as its name tells."""
    host = (parts.hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped.is_loopback or mapped.is_link_local or mapped.is_unspecified
