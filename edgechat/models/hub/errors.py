"""Typed errors for the hub's error responses, from status and headers."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from edgechat.base.errors import (
    AccessDenied,
    HubAnswerError,
    HubError,
    HubUnreachable,
    RateLimited,
    RemoteFileChanged,
    RepoNotFound,
)
from edgechat.base.text import one_line
from edgechat.models.catalogue import catalogue
from edgechat.models.hub.endpoint import Endpoint

CHECK = "Check the network and try again. Models on this machine work without it."
LATER = "Try again later. Models on this machine work without the hub."
_RESET = re.compile(r'"[\w ]+"\s*;\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,6})', re.ASCII)


def host(url: str) -> str:
    """Return the host of a URL, for messages."""
    return one_line(urlsplit(url).hostname or url, 80)


def unreachable(url: str, why: str, *, hint: str = CHECK) -> HubUnreachable:
    """Return the error for an unreachable hub. why: ends the sentence."""
    return HubUnreachable(f"{host(url)} is not reachable: {one_line(why)}.", hint=hint)


def nonsense(url: str, what: str) -> HubAnswerError:
    """Return the error for an invalid response. what: continues the sentence after the host."""
    return HubAnswerError(
        f"{host(url)} {what}.",
        hint="A mirror, a proxy or the login page of this network may be in the way. Try again later.",
    )


def changed(what: str) -> RemoteFileChanged:
    """Return the error for a file that differs from the listing. what: begins the sentence."""
    return RemoteFileChanged(
        f"{what} is not what the hub listed.",
        hint="It was replaced in the meantime, or a mirror is out of date. Try again.",
    )


def refusal(
    hub: Endpoint, repo: str, url: str, status: int, headers: Mapping[str, str], *, had_token: bool
) -> HubError:
    """Return the error for a response of `url` whose status is not a success.

    The body is ignored: the hub states the reason in X-Error-Code.
    """
    code, detail = headers.get("x-error-code", ""), one_line(headers.get("x-error-message", ""), 120)
    if status == 429:
        return _rate_limited(url, headers, had_token=had_token)
    if status >= 500 or status == 408:
        return unreachable(url, f"it responded with error {status}", hint=LATER)
    if status == 416:
        return changed(f"A file of {repo}")
    if not hub.may_see_token(url):
        return nonsense(url, f"stores the files of {repo}, and responded with error {status}")
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
        return RepoNotFound(f"{repo} does not have this file (any more).", hint=f"See {hub.page(repo)}")
    message = f"There is no repository {repo} on {host(hub.url)}, or it is private."
    near = similar_repos(repo)
    if near:
        return RepoNotFound(message, hint=f"Did you mean {' or '.join(near)}?")
    private = "" if had_token else " For a private repository, log in: hf auth login"
    return RepoNotFound(message, hint=f"Check the name.{private}")


def similar_repos(repo: str) -> list[str]:
    """Return models of the catalogue with similar names: 'qwen3-4b (unsloth/Qwen3-4B-…)'."""
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
