from pathlib import Path


def kind_of(path: Path) -> str | None:
    return {".md": "markdown", ".txt": "text", ".py": "code"}.get(path.suffix)


def is_secret(path: Path) -> bool:
    return path.suffix == ".pem"
