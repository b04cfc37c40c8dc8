"""The hub's address: its URLs, the host that receives the token, redirects, and errors for responses."""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from edgechat.base.errors import (
    AccessDenied,
    HubAnswerError,
    HubError,
    HubUnreachable,
    OfflineMode,
    RateLimited,
    RemoteFileChanged,
    RepoNotFound,
    SettingsError,
)
from edgechat.base.network.offline import OFFLINE_OPTION, offline_by
from edgechat.base.text import one_line
from edgechat.models.catalogue import catalogue

DEFAULT = "https://huggingface.co"
_NUMERIC_HOST = re.compile(r"[0-9a-fx.]+", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The URL of the hub or a mirror, without a trailing slash."""

    url: str

    def info(self, repo: str, revision: str | None) -> str:
        """Return the API URL that lists a repository's files with their sizes and hashes."""
        at = f"/revision/{quote(revision, safe='')}" if revision else ""
        return f"{self.url}/api/models/{repo}{at}?blobs=true"

    def file(self, repo: str, commit: str, name: str) -> str:
        """Return the URL of a file at the given commit."""
        return f"{self.url}/{repo}/resolve/{quote(commit, safe='')}/{quote(name)}"

    def page(self, repo: str) -> str:
        """Return the URL of the repository's page."""
        return f"{self.url}/{repo}"

    def may_see_token(self, url: str) -> bool:
        """Return whether `url` has the same scheme, host and port as the hub."""
        return _origin(urlsplit(url)) == _origin(urlsplit(self.url))


def endpoint() -> Endpoint:
    """Return the hub specified by HF_ENDPOINT, or else huggingface.co. Raises SettingsError."""
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
    """Raise OfflineMode if network access is not allowed.

    what: the start of the message: 'x/y was never …'.
    """
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

    Raises HubAnswerError for an invalid URL, a downgrade from HTTPS to HTTP, a redirect from another host to
    this machine, or an address that is link-local (where clouds serve credentials), multicast or reserved.
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
        raise _unsafe_redirect(f"to {host}, which cannot host the hub's files")
    return target


def _unsafe_redirect(where: str) -> HubAnswerError:
    return HubAnswerError(
        f"The hub redirects {where}; edgechat does not follow such redirects.",
        hint="If HF_ENDPOINT names a mirror, try without it; otherwise, check for a proxy.",
    )


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _is_this_machine(parts: SplitResult) -> bool:
    """Return whether the host is a loopback address or name."""
    host = (parts.hostname or "").rstrip(".")
    address = _address(host)
    return host == "localhost" or host.endswith(".localhost") or (address is not None and address.is_loopback)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return a host's IP address. The host can be in any notation, such as 127.1 or 0x7f000001."""
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


CHECK = "Check the network and try again. Models on this machine work without it."
LATER = "Try again later. Models on this machine work without the hub."
_RESET = re.compile(r'"[\w ]+"\s*;\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,6})', re.ASCII)


def host(url: str) -> str:
    """Return a URL's host, for use in messages."""
    return one_line(urlsplit(url).hostname or url, 80)


def unreachable(url: str, why: str, *, hint: str = CHECK) -> HubUnreachable:
    """Return the error for an unreachable hub. why: the end of the message."""
    return HubUnreachable(f"{host(url)} is not reachable: {one_line(why)}.", hint=hint)


def nonsense(url: str, what: str) -> HubAnswerError:
    """Return the error for an invalid response. what: the rest of the message after the host."""
    return HubAnswerError(
        f"{host(url)} {what}.",
        hint="A mirror, a proxy or the login page of this network may be in the way. Try again later.",
    )


def changed(what: str) -> RemoteFileChanged:
    """Return the error for a file that differs from the listing. what: the start of the message."""
    return RemoteFileChanged(
        f"{what} differs from the hub's listing.",
        hint="It was replaced in the meantime, or a mirror is out of date. Try again.",
    )


def refusal(
    hub: Endpoint, repo: str, url: str, status: int, headers: Mapping[str, str], *, had_token: bool
) -> HubError:
    """Return the error for an unsuccessful response from `url`.

    The body is ignored, because the hub states the reason in X-Error-Code.
    """
    code, detail = headers.get("x-error-code", ""), one_line(headers.get("x-error-message", ""), 120)
    if status == 429:
        return _rate_limited(url, headers, had_token=had_token)
    if status >= 500 or status == 408:
        return unreachable(url, f"it responded with error {status}", hint=LATER)
    if status == 416:
        return changed(f"A file in {repo}")
    if not hub.may_see_token(url):
        return nonsense(url, f"responded with error {status}; it stores the files of {repo}")
    if code == "GatedRepo":
        then = "then try again." if had_token else "then log in: hf auth login (or set HF_TOKEN)."
        return AccessDenied(
            f"{repo} can be downloaded only after its terms have been accepted.",
            hint=f"Accept them at {hub.page(repo)}, {then}",
        )
    if status == 401 and had_token and code != "RepoNotFound":
        return AccessDenied(
            f"{host(url)} rejected your token.", hint="Log in again: hf auth login, or unset HF_TOKEN."
        )
    if status in (401, 404):
        return _not_found(hub, repo, code, had_token=had_token)
    if status == 403:
        return AccessDenied(f"{host(url)} denies access to {repo}: {detail or 'access is forbidden'}.")
    return nonsense(url, f"responded with error {status}" + (f": {detail}" if detail else ""))


def _not_found(hub: Endpoint, repo: str, code: str, *, had_token: bool) -> RepoNotFound:
    if code == "RevisionNotFound":
        return RepoNotFound(f"{repo} has no such revision.", hint=f"See the list: {hub.page(repo)}")
    if code == "EntryNotFound":
        return RepoNotFound(
            f"{repo} does not contain this file. It may have been removed.", hint=f"See {hub.page(repo)}"
        )
    message = f"There is no repository {repo} on {host(hub.url)}, or it is private."
    near = similar_repos(repo)
    if near:
        return RepoNotFound(message, hint=f"Did you mean {' or '.join(near)}?")
    private = "" if had_token else " For a private repository, log in: hf auth login"
    return RepoNotFound(message, hint=f"Check the name.{private}")


def similar_repos(repo: str) -> list[str]:
    """Return catalogue models whose names are similar to `repo`: 'qwen3-4b (unsloth/Qwen3-4B-…)'."""
    shown_by_name: dict[str, str] = {}
    for entry in catalogue():
        if entry.repo is not None:
            label = f"{entry.name} ({entry.repo})"
            shown_by_name |= {
                name.lower(): label for name in (entry.repo, entry.repo.partition("/")[2], *entry.names)
            }
    matches: list[str] = []
    for wanted in (repo.lower(), repo.lower().partition("/")[2]):
        matches += difflib.get_close_matches(wanted, shown_by_name, n=2, cutoff=0.75)
    return list(dict.fromkeys(shown_by_name[name] for name in matches))[:2]


def _rate_limited(url: str, headers: Mapping[str, str], *, had_token: bool) -> RateLimited:
    text = headers.get("retry-after", "").strip()
    reset = _RESET.search(headers.get("ratelimit", ""))
    seconds = int(text) if re.fullmatch(r"\d{1,6}", text, re.ASCII) else int(reset[1]) if reset else None
    wait = f"in {seconds} seconds" if seconds else "in a few minutes"
    more = "" if had_token else " To get a higher limit, log in: hf auth login"
    message = f"{host(url)} limits the number of requests."
    return RateLimited(message, hint=f"Try again {wait}.{more}", seconds=seconds)
