"""The commands for conversations: chats with its subcommands."""

from __future__ import annotations

import click
from click.exceptions import Exit

from edgechat.cli import completion
from edgechat.cli.group import ChatsGroup
from edgechat.cli.options import (
    MOST,
    debug_option,
    json_option,
)
from edgechat.cli.parameters import Number, argument, option
from edgechat.cli.terminal_io import as_text

_id = argument(
    "chat",
    metavar="ID",
    help="An id shown by `edgechat chats`, or its first characters.",
    complete=completion.chats,
)


@click.group("chats", cls=ChatsGroup, invoke_without_command=True)
@option("--limit", type=Number(int, min=1, max=MOST), default=20, help="The most results to show.")
@option("--trash", is_flag=True, help="List the conversations that were deleted in the last 30 days.")
@json_option
@debug_option
@click.pass_context
def chats(context: click.Context, limit: int, trash: bool, json: bool) -> None:
    """List stored conversations, latest first; search, show, export or delete them."""
    if context.invoked_subcommand is not None:
        if json:
            example = f"edgechat chats {context.invoked_subcommand} ID --json"
            raise click.BadParameter(f"must follow the command: {example}", param_hint="--json")
        return
    from edgechat.cli.commands import chats as command

    command.list_chats(limit=limit, json=json, trash=trash)


@chats.command("search")
@argument(
    "words",
    nargs=-1,
    required=True,
    metavar="WORDS",
    help="All of them must occur; the last can be the beginning of a word.",
)
@option("--limit", type=Number(int, min=1, max=1000), default=20, help="The most results to show.")
@json_option
@debug_option
def search(words: tuple[str, ...], limit: int, json: bool) -> None:
    """Search all conversations, best matches first."""
    from edgechat.cli.commands import chats as command

    raise Exit(command.search([as_text(word) for word in words], limit=limit, json=json))


@chats.command("show")
@_id
@json_option
@debug_option
def show(chat: str, json: bool) -> None:
    """Print a conversation as Markdown."""
    from edgechat.cli.commands import chats as command

    command.show(as_text(chat), json=json)


@chats.command("rename")
@_id
@argument("title", metavar="TITLE", help='"" takes the first words of the conversation.')
@debug_option
def rename(chat: str, title: str) -> None:
    """Change the title of a conversation."""
    from edgechat.cli.commands import chats as command

    command.rename(as_text(chat), as_text(title))


@chats.command("pin")
@_id
@option("--off", is_flag=True, help="Unpin it.")
@debug_option
def pin(chat: str, off: bool) -> None:
    """Keep a conversation at the top of the app's list."""
    from edgechat.cli.commands import chats as command

    command.pin(as_text(chat), off=off)


@chats.command("export")
@_id
@argument(
    "file", required=False, metavar="FILE", help="The file to write; by default, the conversation is printed."
)
@option("--json", is_flag=True, help="Write JSON, which can be imported again, instead of Markdown.")
@option("--force", is_flag=True, help="Overwrite an existing file.")
@debug_option
def export(chat: str, file: str | None, json: bool, force: bool) -> None:
    """Write a conversation to a file, as Markdown or as JSON."""
    from edgechat.cli.commands import chats as command

    command.export(as_text(chat), file, json=json, force=force)


@chats.command("import")
@argument("file", metavar="FILE", help="An exported JSON file; - reads standard input.")
@json_option
@debug_option
def import_chat(file: str, json: bool) -> None:
    """Import an exported conversation, or a list of messages in the format of OpenAI's API."""
    from edgechat.cli.commands import chats as command

    command.import_chat(file, json=json)


@chats.command("rm")
@argument(
    "chats",
    nargs=-1,
    required=True,
    metavar="ID",
    help="An id shown by `edgechat chats`, or its first characters.",
    complete=completion.chats,
)
@option("--now", is_flag=True, help="Delete permanently; otherwise, the trash keeps them for 30 days.")
@option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@debug_option
def rm(chats: tuple[str, ...], now: bool, yes: bool) -> None:
    """Delete conversations, and their saved KV state."""
    from edgechat.cli.commands import chats as command

    command.rm([as_text(chat) for chat in chats], yes=yes, now=now)


@chats.command("restore")
@argument(
    "chats",
    nargs=-1,
    required=True,
    metavar="ID",
    help="An id shown by `edgechat chats --trash`, or its first characters.",
    complete=completion.trashed_chats,
)
@debug_option
def restore(chats: tuple[str, ...]) -> None:
    """Restore conversations from the trash."""
    from edgechat.cli.commands import chats as command

    command.restore([as_text(chat) for chat in chats])
