"""Draw the README's pictures: `python packaging/pictures.py [FOLDER]` writes app.svg and plan.svg there.

The app talks to the shipped guide, and the plan is for a laptop with 16 GB. Both use a temporary home folder.
"""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text
from textual.pilot import Pilot

_HERE = Path(__file__).resolve().parent
_SIZE = 164, 36
"""The app's columns and rows."""
_PLANNED = ("plan", "qwen3-8b", "--ram", "16GB", "--vram", "0", "--bandwidth", "60GB/s")
_COLUMNS = 100
_CHATS = (("Where are my chats stored?",), ("How do I quantize a model?", "What is speculative decoding?"))
_PATIENCE = 60.0


async def draw_app(path: Path) -> None:
    """Ask the guide questions, open the list of conversations and the engine room, and draw the screen."""
    from edgechat.tui.app import EdgechatApp, StartOptions

    app = EdgechatApp(StartOptions("guide"), theme="dark")
    async with app.run_test(size=_SIZE) as pilot:
        await _until(pilot, "tokens")
        for chat in _CHATS:
            await pilot.press("ctrl+n")
            for question in chat:
                await pilot.press(*("space" if letter == " " else letter for letter in question), "enter")
                await _until(pilot, question)
                await _until(pilot, "tok/s")
        await pilot.press("ctrl+b", "ctrl+g")
        await _until(pilot, "last minute")
        await pilot.pause(1)
        path.write_text(app.export_screenshot(title="edgechat"), encoding="utf-8")


async def _until(pilot: Pilot[None], text: str) -> None:
    """Wait until a text appears on the screen. Raises TimeoutError."""
    async with asyncio.timeout(_PATIENCE):
        while text not in pilot.app.export_screenshot().replace("&#160;", " "):
            await pilot.pause(0.1)
        await pilot.pause(0.3)


def draw_plan(path: Path) -> None:
    """Draw the output of `edgechat plan`."""
    variables = os.environ | {"COLUMNS": str(_COLUMNS), "FORCE_COLOR": "1"}
    command = [sys.executable, "-m", "edgechat", *_PLANNED]
    said = subprocess.run(command, env=variables, check=True, capture_output=True, encoding="utf-8").stdout
    console = Console(record=True, width=_COLUMNS, file=io.StringIO())
    console.print(Text(f"$ edgechat {' '.join(_PLANNED)}", style="bold"))
    console.print(Text.from_ansi(said))
    path.write_text(console.export_svg(title="edgechat plan"), encoding="utf-8")


def main() -> None:
    """Draw both pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _HERE
    with tempfile.TemporaryDirectory() as home:
        os.environ["EDGECHAT_HOME"] = home
        draw_plan(folder / "plan.svg")
        asyncio.run(draw_app(folder / "app.svg"))


if __name__ == "__main__":
    main()
