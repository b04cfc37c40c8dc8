"""Names of models and files on the hub, as typed or pasted by users."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote, urlsplit

_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co", "www.hf.co"})
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?", re.ASCII)
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9_])?", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._/-]{0,254}[A-Za-z0-9_])?", re.ASCII)
_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]) *(\.|$)", re.IGNORECASE)
_MAX_REPO = 96
_MAX_TEXT = 2048
MAX_PATH = 1024
"""Maximum length of a path, in bytes."""
MAX_COMPONENT = 255
"""Maximum length of one path component, in bytes. File systems have the same limit."""
# Folders in a source checkout and pages of the hub itself, which never own repositories.
_RESERVED = frozenset({"api", "datasets", "spaces", "docs", "models", "collections", "papers", "blog"})


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository on the hub, optionally with a quantization, revision or file."""

    repo: str
    """'owner/name'."""
    quant: str | None = None
    """The requested quantization, in uppercase: 'Q5_K_M'."""
    revision: str | None = None
    """A branch, tag or commit. None means the main branch."""
    file: str | None = None
    """Path of the file in the repository, if the link points to a file."""

    def __str__(self) -> str:
        name = self.repo + (f":{self.quant}" if self.quant else "")
        if self.revision is None:
            return name
        place = "blob" if self.file else "tree"
        link = f"https://huggingface.co/{name}/{place}/{quote(self.revision, safe='')}"
        return f"{link}/{quote(self.file)}" if self.file else link


def parse_model_name(text: str) -> HubName | None:
    """Return the repository that `text` refers to, or None.

    Accepts owner/repo, owner/repo:QUANT, hf.co/owner/repo[:QUANT], and browser URLs for a repository or a
    file in it. Callers should first check whether there is a local file with that name: 'models/tiny' could
    be either. Names that end in .gguf are treated as paths.
    """
    text = text.strip()
    if not text or len(text) > _MAX_TEXT or not text.isprintable() or "\\" in text:
        return None
    host = text.partition("/")[0]
    if "://" in text:
        return _from_link(text)
    if host.lower() in _HOSTS:
        return _from_link("https://" + text)
    return _from_name(text)


def valid_repo(repo: str) -> bool:
    """Return whether this is a valid repository name on the hub: 'owner/name'."""
    owner, slash, name = repo.partition("/")
    if not slash or len(repo) > _MAX_REPO or "--" in repo or ".." in repo or name.endswith(".git"):
        return False
    return bool(_PART.fullmatch(owner) and _PART.fullmatch(name))


def valid_revision(revision: str) -> bool:
    """Return whether this is a valid name for a branch, tag or commit."""
    return bool(_REVISION.fullmatch(revision)) and ".." not in revision and "//" not in revision


def safe_path(name: str) -> bool:
    """Return whether `name` is a plain relative path that cannot leave its folder on any platform."""
    try:
        n_bytes = len(name.encode())
    except UnicodeEncodeError:
        return False
    if n_bytes > MAX_PATH or "\\" in name or name[1:2] == ":":
        return False
    if any(ord(char) < 32 or ord(char) == 127 for char in name):
        return False
    return all(
        part not in ("", ".", "..") and len(part.encode()) <= MAX_COMPONENT for part in name.split("/")
    )


def portable_path(name: str) -> bool:
    """Return whether a safe path is also valid on Windows.

    On Windows, ':' introduces a stream's name or ends a drive letter, device names are reserved in every
    folder, and trailing dots and spaces are dropped.
    """
    return not any(":" in part or part[-1] in ". " or _DEVICE.match(part) for part in name.split("/"))


def _from_name(text: str) -> HubName | None:
    repo, colon, label = text.partition(":")
    if not valid_repo(repo) or repo.partition("/")[0].lower() in _RESERVED:
        return None
    if repo.lower().endswith(".gguf") or (colon and not _LABEL.fullmatch(label)):
        return None
    return HubName(repo, label.upper() or None)


def _from_link(text: str) -> HubName | None:
    try:
        link = urlsplit(text)
        port = link.port
    except ValueError:
        return None
    if link.scheme not in ("http", "https") or (link.hostname or "") not in _HOSTS:
        return None
    if port not in (None, 80, 443) or "@" in link.netloc:
        return None
    owner, name, *rest = [*link.path.strip("/").split("/"), ""]
    name_only = _from_name(f"{owner}/{name}")
    if name_only is None:
        return None
    revision, file = _revision_and_file(rest)
    if (revision is not None and not valid_revision(revision)) or (file is not None and not safe_path(file)):
        return None
    return replace(name_only, revision=revision, file=file)


def _revision_and_file(rest: list[str]) -> tuple[str | None, str | None]:
    """Parse the part of a link that follows the repository: blob/main/folder/a.gguf."""
    if len(rest) < 2 or rest[0] not in ("blob", "resolve", "tree", "raw"):
        return None, None
    file = unquote("/".join(rest[2:]).strip("/"))
    return unquote(rest[1]) or None, file if file and rest[0] != "tree" else None
