"""mkdocs hook that adds the picture of the app, which the documentation shows but docs/ does not contain."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the picture that README.md shows."""
    picture = Path(__file__).with_name("app.svg")
    files.append(File.generated(config, picture.name, abs_src_path=str(picture)))
    return files
