"""Home folders with models left by other tools, in those tools' layouts; and isolation from the real home."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

VARIABLES = (
    "HF_HOME",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "XDG_CACHE_HOME",
    "LLAMA_CACHE",
    "OLLAMA_MODELS",
)
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def settle(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `home` the user's home, empty, for child processes too."""
    home.mkdir(parents=True, exist_ok=True)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    # Tests must not find a developer's own Ollama service.
    monkeypatch.setenv("OLLAMA_MODELS", str(home / ".ollama" / "models"))


def place(source: Path, target: Path) -> Path:
    """Copy a file to `target`; return it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    return target


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def in_hub(
    home: Path, source: Path, repo: str, name: str, *, commit: str = COMMIT, main: bool = True
) -> Path:
    """Store a file as huggingface_hub does; return its path in the snapshot."""
    folder = home / ".cache" / "huggingface" / "hub" / ("models--" + repo.replace("/", "--"))
    blob = folder / "blobs" / sha256(source)
    if not blob.exists():
        place(source, blob)
    link = folder.joinpath("snapshots", commit, *name.split("/"))
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(blob, link.parent))
    if main:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(commit)
    return link


def in_ollama(
    home: Path,
    source: Path,
    tag: str,
    *,
    host: str = "registry.ollama.ai/library",
    projector: Path | None = None,
    **layers: object,
) -> Path:
    """Store a file as Ollama does, optionally with a projector and other layers; return the blob.

    layers: their contents by kind, as bytes, text, or an object to store as JSON.
    """
    root = home / ".ollama" / "models"
    kinds = {"model": source} | ({"projector": projector} if projector else {})
    blobs = {kind: root / "blobs" / f"sha256-{sha256(file)}" for kind, file in kinds.items()}
    for kind, target in blobs.items():
        if not target.exists():
            place(kinds[kind], target)
    others = {}
    for kind, content in ({"license": "Do what you want."} | layers).items():
        text = content if isinstance(content, (bytes, str)) else json.dumps(content)
        data = text.encode() if isinstance(text, str) else text
        others[kind] = (hashlib.sha256(data).hexdigest(), len(data))
        (root / "blobs" / f"sha256-{others[kind][0]}").write_bytes(data)
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "digest": "", "size": 1},
        "layers": [
            *(
                {
                    "mediaType": f"application/vnd.ollama.image.{kind}",
                    "digest": f"sha256:{sha256(file)}",
                    "size": file.stat().st_size,
                }
                for kind, file in kinds.items()
            ),
            *(
                {
                    "mediaType": f"application/vnd.ollama.image.{kind}",
                    "digest": f"sha256:{digest}",
                    "size": size,
                }
                for kind, (digest, size) in others.items()
            ),
        ],
    }
    model, _, version = tag.partition(":")
    write_manifest(home, f"{host}/{model}/{version or 'latest'}", manifest)
    return blobs["model"]


def write_manifest(home: Path, name: str, manifest: object, *, folder: str = "manifests") -> Path:
    path = home.joinpath(".ollama", "models", folder, *name.split("/"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(manifest if isinstance(manifest, str) else json.dumps(manifest))
    return path


def in_lm_studio(home: Path, source: Path, name: str) -> Path:
    """Store a file as LM Studio does; `name` is publisher/repo/file."""
    return place(source, home.joinpath(".lmstudio", "models", *name.split("/")))
