"""Where other programs keep their tool servers, in the same notation as mcp.json."""

from __future__ import annotations

import os
import sys
from pathlib import Path

NAMES = {"claude": "Claude Desktop", "cursor": "Cursor", "lmstudio": "LM Studio"}


def config_files(program: str) -> list[Path]:
    """Return where the file of a program may be: 'claude', 'cursor' or 'lmstudio'."""
    home = Path.home()
    match program:
        case "claude":
            return [_application_data() / "Claude" / "claude_desktop_config.json"]
        case "cursor":
            return [home / ".cursor" / "mcp.json"]
        case "lmstudio":
            return [home / ".lmstudio" / "mcp.json", home / ".cache" / "lm-studio" / "mcp.json"]
    raise ValueError(program)


def _application_data() -> Path:
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Application Support"
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or home / "AppData" / "Roaming")
    return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
