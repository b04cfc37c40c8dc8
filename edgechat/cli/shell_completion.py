"""Shell completion: the scripts that request completions, and the replies to those requests.

The protocol is typer's, since users' machines still have scripts from typer. A script sets _EDGECHAT_COMPLETE
to complete_SHELL, and passes the command line in other variables. The current scripts, which are in
`base/data/completion`, all use the format for fish: one value per line, followed by a tab and its
description.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click
from click.exceptions import Exit
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

from edgechat.base import paths
from edgechat.cli import completion

_SCRIPTS = {
    "bash": "edgechat.bash",
    "zsh": "_edgechat",
    "fish": "edgechat.fish",
    "powershell": "edgechat.ps1",
    "pwsh": "edgechat.ps1",
}
_SPACE = re.compile(r"\s")
SCRIPTS = tuple(dict.fromkeys(_SCRIPTS.values()))


def script(name: str) -> str:
    """Return the contents of a script, given its file name."""
    return paths.shipped(f"completion/{name}").read_text(encoding="utf-8")


def answer(group: click.Command, program: str, instruction: str) -> int:
    """Print the reply to a shell's request, and return the exit code."""
    action, found, shell = instruction.partition("_")
    if not found:
        return _refuse("Invalid completion instruction.")
    if shell not in _SCRIPTS:
        return _refuse(f"Shell {shell} not supported.")
    if action == "source":
        click.echo(script(_SCRIPTS[shell]), nl=False)
        return 0
    if action != "complete":
        return _refuse(f'Completion instruction "{action}" not supported.')
    words, incomplete = _words(shell)
    items = ShellComplete(group, {}, program, completion.VARIABLE).get_completions(words, incomplete)
    if shell == "fish" and os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return int(not items)  # a nonzero code makes fish complete paths
    click.echo(_FORMATS[shell](items))
    return 0


def _refuse(message: str) -> int:
    click.echo(message, err=True)
    return 1


def _words(shell: str) -> tuple[list[str], str]:
    """Return the complete words after the program's name, and the incomplete word being typed."""
    if shell == "bash":
        words, at = split_arg_string(os.environ["COMP_WORDS"]), int(os.environ["COMP_CWORD"])
        return words[1:at], words[at] if at < len(words) else ""
    line = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = split_arg_string(line)[1:]
    if shell in ("powershell", "pwsh"):
        word = os.environ.get("_TYPER_COMPLETE_WORD_TO_COMPLETE", "")
        return words[:-1] if word else words, word
    return (words[:-1], words[-1]) if words and not line.endswith(" ") else (words, "")


def _for_bash(items: list[CompletionItem[Any]]) -> str:
    return "\n".join(str(item.value) for item in items)


def _for_fish(items: list[CompletionItem[Any]]) -> str:
    return "\n".join(
        f"{item.value}\t{_SPACE.sub(' ', item.help)}" if item.help else str(item.value) for item in items
    )


def _for_zsh(items: list[CompletionItem[Any]]) -> str:
    """Return a command for the older zsh script to evaluate."""
    lines = [":".join(f'"{_quoted(text)}"' for text in (item.value, item.help) if text) for item in items]
    return "_arguments '*: :(({}))'".format("\n".join(lines)) if lines else "_files"


def _quoted(text: str) -> str:
    # Backslashes are processed twice: once by the quotes, then by _arguments.
    for character, quoted in (
        ("\\", 4 * "\\"),
        ('"', '""'),
        ("'", "''"),
        ("$", "\\$"),
        ("`", "\\`"),
        (":", r"\\:"),
    ):
        text = text.replace(character, quoted)
    return text


def _for_powershell(items: list[CompletionItem[Any]]) -> str:
    return "\n".join(f"{item.value}:::{item.help or ' '}" for item in items)


_FORMATS = {
    "bash": _for_bash,
    "zsh": _for_zsh,
    "fish": _for_fish,
    "powershell": _for_powershell,
    "pwsh": _for_powershell,
}


def show() -> None:
    """Print the script for the shell that started edgechat."""
    shell = _shell()
    if shell not in _SCRIPTS:
        raise Exit(_refuse(f"Shell {shell or ''} not supported."))
    click.echo(script(_SCRIPTS[shell]), nl=False)


def install() -> None:
    """Set up completion in the shell that started edgechat."""
    shell = _shell()
    if shell not in _SCRIPTS:
        click.echo(f"Shell {shell} is not supported.")
        raise Exit(1)
    path = _install(shell, script(_SCRIPTS[shell]))
    click.secho(f"{shell} completion installed in {path}", fg="green")
    click.echo("Completion will take effect once you restart the terminal")


def _shell() -> str | None:
    import shellingham

    try:
        name: str = shellingham.detect_shell()[0]
    except shellingham.ShellDetectionFailure:
        return None
    return name


def _install(shell: str, text: str) -> Path:
    """Write the script to where the shell looks for it, and return its path.

    Also configures the shell if needed.
    """
    home = Path.home()
    if shell == "bash":
        path = home / ".bash_completions" / "edgechat.sh"
        _add_lines(home / ".bashrc", f"source '{path}'")
    elif shell == "zsh":
        path = home / ".zfunc" / "_edgechat"
        _add_lines(home / ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit")
        if "zstyle" not in (home / ".zshrc").read_text():
            _add_lines(home / ".zshrc", "zstyle ':completion:*' menu select")
    elif shell == "fish":
        path = home / ".config" / "fish" / "completions" / "edgechat.fish"
    else:
        path = _powershell_profile(shell)
        _add_lines(path, text)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _add_lines(path: Path, text: str) -> None:
    before = path.read_text() if path.is_file() else ""
    if text not in before:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{before}\n{text}\n")


def _powershell_profile(shell: str) -> Path:
    import subprocess

    policy = ["Set-ExecutionPolicy", "Unrestricted", "-Scope", "CurrentUser"]
    subprocess.run([shell, "-Command", *policy], check=False)
    told = subprocess.run(
        [shell, "-NoProfile", "-Command", "echo", "$profile"], check=True, capture_output=True
    )
    return Path(os.fsdecode(told.stdout).strip())
