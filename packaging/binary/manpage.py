"""Man pages, generated from the command line itself and from docs/: edgechat.1, and one for each command.

    python packaging/binary/manpage.py OUT

They contain what --help prints, which click-man's pages do not. The subcommands of `chats` and `mcp` are
documented on the pages of those commands, since each needs only a few lines.
"""

from __future__ import annotations

import os
import re
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import platformdirs
from roff import bold, escaped, italic, prose, tagged

from edgechat import __version__
from edgechat.cli.main import app

ROOT = Path(__file__).parents[2]
NAME = "edgechat"


def _table(page: str, heading: str) -> dict[str, str]:
    """Return the rows of the table under a heading in docs/, without the first column's backticks."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").split(f"\n## {heading}\n", 1)[1]
    rows = re.findall(r"^\| `?([^|`]+)`? \| (.+) \|$", text.split("\n## ", 1)[0], re.MULTILINE)
    return dict(rows[1:])  # without the header row


ENVIRONMENT = _table("settings.md", "Environment variables")
EXIT_STATUS = {int(code): text for code, text in _table("command-line.md", "Exit codes").items()}
# The modules whose docstrings describe what --json prints.
JSON_FORMS = {
    "device": "edgechat.cli.commands.device",
    "plan": "edgechat.cli.commands.plan",
    "pull": "edgechat.cli.commands.pull",
    "bench": "edgechat.cli.commands.bench",
    "list": "edgechat.cli.commands.models",
    "show": "edgechat.cli.commands.show",
    "chats": "edgechat.cli.commands.chats",
}
# What to print for each type name in --help.
_KINDS = {
    "str": "TEXT",
    "int": "N",
    "int range": "N",
    "float": "NUMBER",
    "float range": "NUMBER",
    "path": "FILE",
}


# Options that every command has; the pages of subcommands leave them out.
_EVERYWHERE = ("debug", "help")
_INDENT = " " * 4


def write_pages(folder: Path) -> list[Path]:
    """Write all pages to a folder, creating it if necessary; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    root = app
    context = root.make_context(NAME, [], resilient_parsing=True)
    texts = {f"{NAME}.1": _overview(root, context)}
    for name, command in root.commands.items():
        texts[f"{NAME}-{name}.1"] = _page(command, _within(command, name, context))
    for file, lines in texts.items():
        (folder / file).write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return [folder / file for file in texts]


def _overview(root: Any, context: Any) -> list[str]:
    return [
        *_head(NAME, root.help),
        ".SH SYNOPSIS",
        f"{bold(NAME)} [{italic('OPTIONS')}]",
        ".br",
        f"{bold(NAME)} {italic('COMMAND')} [{italic('ARGUMENTS')}]",
        ".SH DESCRIPTION",
        prose(
            "edgechat examines the machine, chooses a model, a quantization and how to load it, and gives "
            "the reasons. Without a command, it opens the app in the terminal: Enter sends, Escape stops "
            "an answer, F1 lists every key. The guide, a small model that ships with edgechat, answers "
            "questions about it without a network."
        ),
        ".SH OPTIONS",
        *_options(root, context),
        ".SH COMMANDS",
        *(
            line
            for name, command in root.commands.items()
            for line in tagged(rf"\fB{escaped(f'{NAME}-{name}')}\fR(1)", command.help)
        ),
        ".SH ENVIRONMENT",
        *(line for name, text in ENVIRONMENT.items() for line in tagged(bold(name), text)),
        ".SH FILES",
        *(line for path, text in files().items() for line in tagged(italic(path), text)),
        ".SH EXIT STATUS",
        *(line for code, text in EXIT_STATUS.items() for line in tagged(bold(str(code)), text)),
        ".SH EXAMPLES",
        *_examples(),
        ".SH SEE ALSO",
        ",\n".join(rf".BR {escaped(f'{NAME}-{name}')} (1)" for name in root.commands).replace(
            ",\n.", " ,\n."
        ),
        ".PP",
        escaped("https://github.com/edgechat/edgechat"),
    ]


def _page(command: Any, context: Any) -> list[str]:
    name = context.info_name
    lines = [*_head(f"{NAME}-{name}", command.help), ".SH SYNOPSIS"]
    subcommands = [(one, _within(one, key, context)) for key, one in getattr(command, "commands", {}).items()]
    lines += [_usage(command, context), *(f".br\n{_usage(*one)}" for one in subcommands)]
    lines += [".SH DESCRIPTION", prose(command.help)]
    if command.epilog:
        lines += [".PP", prose(command.epilog)]
    lines += [*_arguments(".SH", command, context), ".SH OPTIONS", *_options(command, context)]
    if subcommands:
        lines.append(".SH COMMANDS")
    for one, inner in subcommands:
        lines += [f".SS {escaped(inner.info_name)}", prose(one.help)]
        lines += [*_terms(one, inner, "argument"), *_terms(one, inner, "option", without=_EVERYWHERE)]
    if name in JSON_FORMS:
        lines += [".SH JSON", *_json_form(import_module(JSON_FORMS[name]).__doc__ or "")]
    return [*lines, ".SH SEE ALSO", rf".BR {NAME} (1)"]


def _head(title: str, summary: str) -> list[str]:
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    date = datetime.fromtimestamp(int(epoch), UTC).strftime("%Y-%m-%d") if epoch else ""
    first = re.split(r"[.:;](?:\s|$)", summary)[0]
    return [
        f'.TH {escaped(title.upper())} 1 "{date}" "{NAME} {escaped(__version__)}" "{NAME} manual"',
        # Titles are capitalized for use in lists; man pages start them in lowercase here.
        ".SH NAME",
        rf"{escaped(title)} \- {prose(first[0].lower() + first[1:])}",
    ]


def _within(command: Any, name: str, parent: Any) -> Any:
    """Return a command's context without running the command."""
    return command.make_context(name, [], parent=parent, resilient_parsing=True)


def _usage(command: Any, context: Any) -> str:
    words = [re.sub(r"[{}]", "", word) for word in command.collect_usage_pieces(context)]
    return " ".join([bold(context.command_path), *map(italic, words)])


def _options(command: Any, context: Any) -> list[str]:
    return _terms(command, context, "option")


def _arguments(macro: str, command: Any, context: Any) -> list[str]:
    lines = _terms(command, context, "argument")
    return [f"{macro} ARGUMENTS", *lines] if lines else []


def _terms(command: Any, context: Any, kind: str, without: tuple[str, ...] = ()) -> list[str]:
    """Return the options or arguments as --help lists them, leaving out those in `without`."""
    lines: list[str] = []
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is not None and param.param_type_name == kind and param.name not in without:
            lines += tagged(_term(record[0], is_option=kind == "option"), record[1])
    return lines


def _term(said: str, *, is_option: bool) -> str:
    """Return '-m, --model <str>' in roff: literal text in bold, placeholders in italics."""
    if not is_option:
        return italic(said.partition(" <")[0])
    found = re.fullmatch(r"((?:--?[\w-]+(?:, | / )?)+) ?(.*)", said)
    assert found is not None, said
    names, value = found[1], re.sub(r"^<(?:list\[)?(.*?)\]?>$", r"\1", found[2])
    parts = re.split(r"(, | / )", names.strip())
    term = "".join(escaped(part) if at % 2 else bold(part) for at, part in enumerate(parts))
    return f"{term} {italic(_KINDS.get(value, value))}" if value else term


def files() -> dict[str, str]:
    """Return the files that edgechat stores on this platform, keyed by path, with ~ for the home folder."""
    return {
        _home(platformdirs.user_config_dir(NAME, appauthor=False), "settings.toml"): "The settings; every "
        "field is optional.",
        _home(platformdirs.user_config_dir(NAME, appauthor=False), "models.toml"): "Your own additions "
        "to the catalogue of models, and changes to it.",
        _home(platformdirs.user_config_dir(NAME, appauthor=False), "api-key"): "The API key of "
        "`edgechat serve`, readable only by you.",
        _home(platformdirs.user_config_dir(NAME, appauthor=False), "mcp.json"): "The tool servers.",
        _home(platformdirs.user_data_dir(NAME, appauthor=False), "chats.db"): "The conversations.",
        _home(
            platformdirs.user_data_dir(NAME, appauthor=False), "consents.json"
        ): "Your answers about tools.",
        _home(platformdirs.user_data_dir(NAME, appauthor=False), "models"): "Imported models.",
        _home(platformdirs.user_cache_dir(NAME, appauthor=False)): "Caches, which can be deleted.",
        _home(platformdirs.user_log_dir(NAME, appauthor=False)): "Logs of the worker processes.",
    }


def _home(*parts: str) -> str:
    path = Path(*parts)
    return f"~/{path.relative_to(Path.home()).as_posix()}" if path.is_relative_to(Path.home()) else str(path)


def _examples() -> list[str]:
    """Return the commands in the first code block of docs/command-line.md, with their comments."""
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    block = page.split("```", 2)[1]
    lines: list[str] = []
    for line in filter(None, block.splitlines()):
        command, _, text = (part.strip() for part in line.partition("  #"))
        lines += tagged(bold(command), text[:1].upper() + text[1:] + "." if text else r"")
    return lines


def _json_form(docstring: str) -> list[str]:
    """Return what a module's docstring says about --json: paragraphs, and tables of keys and meanings."""
    told = docstring[docstring.index("With --json") :]
    lines: list[str] = []
    for block in filter(None, map(str.rstrip, told.split("\n\n"))):
        rows = _rows(block) if block.startswith(_INDENT) else [("", block)]
        for keys, text in rows:
            lines += tagged(bold(keys), text) if keys else [*([".PP"] if lines else []), prose(text)]
    return lines


def _rows(table: str) -> list[tuple[str, str]]:
    """Return the rows of an indented table as (keys, meaning), or as ("", keys) if there is no meaning."""
    joined = re.sub(rf"\n{_INDENT} +|,\n{_INDENT}", lambda found: ", " if "," in found[0] else " ", table)
    rows: list[tuple[str, str]] = []
    for line in joined.splitlines():
        keys, gap, text = re.split(r"(\s{2,}|$)", line.removeprefix(_INDENT), maxsplit=1)
        rows.append((keys, text) if gap else ("", keys))
    return rows


def main() -> int:
    """Write the pages to the folder in argv[1]."""
    if len(sys.argv) != 2:
        print("usage: python packaging/binary/manpage.py FOLDER", file=sys.stderr)
        return 2
    print(f"{len(write_pages(Path(sys.argv[1])))} pages written to {sys.argv[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
