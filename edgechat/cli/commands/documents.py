"""`edgechat docs`: documents that models can draw on for answers. docs/documents.md describes --json."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgechat.base.errors import DocumentError, EdgechatError, ToolError
from edgechat.base.process.spawn import frozen
from edgechat.base.text import flat, mebibytes, one_line, printable
from edgechat.cli import completion
from edgechat.cli.declaring import TEXT, CliGroup, Number, argument, option
from edgechat.cli.options import json_option
from edgechat.cli.terminal_io import StatusLine, confirm, note, print_json, table
from edgechat.documents import registry
from edgechat.documents.registry import (
    KnownCollection,
    collection_at,
    free_name,
    known_collections,
    root_of,
    survey,
)

if TYPE_CHECKING:
    from edgechat.documents.collection import Collection, Counts
    from edgechat.documents.indexing import Progress, Update
    from edgechat.documents.library import Given

_MOST_TOLD = 10
"""Maximum number of skipped files to list by name. Any others are only counted."""

_name = argument(
    "name",
    metavar="NAME",
    help="A name shown by `edgechat docs list`.",
    type=TEXT,
    complete=completion.documents,
)


@click.group("docs", cls=CliGroup, no_args_is_help=True, offline=True)
def docs() -> None:
    """Add, list and search documents, about which models can be asked."""


@docs.command("add")
@argument("paths", nargs=-1, required=True, metavar="PATH...", help="Folders and files.", type=TEXT)
@option(
    "--name",
    metavar="NAME",
    help="Name of the documents. Default: the name of the first folder or file.",
    type=TEXT,
)
@option("--yes", "-y", is_flag=True, help="Do not ask before a huge folder is read, such as a whole disk.")
def add(paths: tuple[str, ...], name: str | None, yes: bool) -> None:
    """Add folders and files to documents, new ones or known ones, and read them."""
    roots = [root_of(path) for path in paths]
    if name is None:
        same = collection_at(roots[0])
        name = same.name if same is not None else free_name(roots[0])
    if not yes:
        _ask_about(name, roots)
    is_new = name not in registry.names()
    with closing(registry.create(name)) as collection:
        _check_apart(collection, roots)
        for root in roots:
            collection.add_root(str(root))
    _update([name])
    with closing(registry.open_collection(name)) as collection:
        counts = collection.counts()
        print(flat(f"{name}: {_amount(counts)}."))
    if not counts.passages:
        note("there is no readable text in it yet. Files that are added later will be found.")
        return
    print(flat(f'To ask about it: edgechat run MODEL --docs {shlex.quote(name)} "QUESTION"'))
    if is_new and not counts.embedded:
        _recommend_embedder()


@docs.command("list")
@json_option
def list_documents(json: bool) -> None:
    """List the documents: what they are called, where they are, and how much is in them."""
    known = known_collections()
    if json:
        print_json([_as_json(one) for one in known])
        return
    usable = [(one, one.counts) for one in known if one.counts is not None]
    if usable:
        print(table([(flat(one.name), _amount(n), flat(", ".join(one.roots))) for one, n in usable]))
    elif not known:
        print("There are no documents yet. To add some: edgechat docs add FOLDER")
    for one in known:
        for root in one.away:
            note(root.away)
        for unread in one.unread:
            note(f"{one.name}: {unread}.")
        if one.problem:
            note(f"{one.problem} {one.hint}")


@docs.command("update")
@argument(
    "names",
    nargs=-1,
    required=False,
    metavar="[NAME]...",
    help="Default: all.",
    complete=completion.documents,
    type=TEXT,
)
def update(names: tuple[str, ...]) -> None:
    """Read what has changed; a question does so, too."""
    chosen = names or _usable()
    for name, told in zip(chosen, _update(chosen) if chosen else (), strict=True):
        changes = [f"{told.read:,} read"] if told.read else []
        changes += [f"{told.removed:,} gone"] if told.removed else []
        print(flat(f"{name}: {', '.join(changes) or 'nothing has changed'}."))


@docs.command("search")
@argument(
    "names",
    nargs=-1,
    required=False,
    metavar="[NAME]...",
    help="Names shown by `edgechat docs list`. Default: all.",
    complete=completion.documents,
    type=TEXT,
)
@argument("question", metavar="QUESTION", help="Words, or a whole question.", type=TEXT)
@option("--limit", type=Number(int, min=1, max=50), default=8, help="Number of passages.")
@json_option
def search(names: tuple[str, ...], question: str, limit: int, json: bool) -> None:
    """Print the passages that a model would be given for a question, the best first."""
    import asyncio

    chosen = names or _usable()
    found = asyncio.run(_found(chosen, question, limit)) if chosen else []
    if json:
        print_json(
            [
                {
                    "collection": one.source.collection,
                    "name": one.name,
                    "path": one.source.path,
                    "place": one.source.place,
                    "start": one.source.start,
                    "end": one.source.end,
                    "text": one.text,
                }
                for one in found
            ]
        )
    elif chosen and not found:
        print("These documents contain none of these words.")
    for one in () if json else found:
        print(flat(one.name if len(chosen) == 1 else f"{one.source.collection}: {one.name}"))
        print("\n".join(f"    {line}" for line in printable(one.text).splitlines()), end="\n\n")


@docs.command("rm")
@_name
@argument(
    "paths",
    nargs=-1,
    required=False,
    metavar="[PATH]...",
    help="Only these of its folders and files. Default: all.",
    type=TEXT,
)
@option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def rm(name: str, paths: tuple[str, ...], yes: bool) -> None:
    """Forget documents; the files themselves stay."""
    known = next((one for one in known_collections() if one.name == name), None)
    if known is None or (paths and known.problem):
        registry.open_collection(name).close()  # raises the appropriate error
    assert known is not None
    chosen = [str(Path(path).expanduser().absolute()) for path in paths]
    for path in chosen:
        if path not in known.roots:
            hint = "Its folders and files: " + ", ".join(map(one_line, known.roots))
            raise DocumentError(f"{one_line(path)} is not part of {name}.", hint=hint)
    amount = _amount(known.counts) if known.counts is not None else known.problem
    print(flat(f"{name}  {', '.join(chosen) or amount}"))
    if not yes:
        confirm("Forget it?", "Nothing was removed", "Add --yes to forget it.")
    if not chosen:
        registry.remove(name)
    for path in chosen:
        with closing(registry.open_collection(name)) as collection:
            collection.remove_root(path)
    print(flat(f"Forgot {', '.join(chosen) or name}. The files themselves are still there."))


@docs.command("serve", epilog="For Claude Code: claude mcp add handbook -- edgechat docs serve handbook")
@argument(
    "names",
    nargs=-1,
    required=False,
    metavar="[NAME]...",
    help="Default: all, including later ones.",
    complete=completion.documents,
    type=TEXT,
)
def serve(names: tuple[str, ...]) -> None:
    """Let another program, which starts this, search and read documents, over MCP (stdin and stdout)."""
    import asyncio

    for name in names:
        registry.open_collection(name).close()
    if find_spec("mcp") is None:
        hint = None if frozen() else 'To install them: pip install "edgechat[tools]"'
        raise ToolError("MCP needs packages that are not installed.", hint=hint)
    from edgechat.server.mcp_documents import serve_documents

    if sys.stdin.isatty():
        own = shlex.join(["edgechat", "docs", "serve", *names])
        note(f"this waits for the program that starts it, such as: claude mcp add documents -- {own}")
    asyncio.run(serve_documents(names))


def _usable() -> list[str]:
    """Return the names of all readable collections, and print notes about the others."""
    known = known_collections()
    if not known:
        note("There are no documents yet. To add some: edgechat docs add FOLDER")
    for one in known:
        if one.problem:
            note(f"{one.problem} {one.hint}")
    return [one.name for one in known if not one.problem]


async def _found(names: Sequence[str], question: str, limit: int) -> list[Given]:
    from edgechat.documents.embedding import embedder_here
    from edgechat.documents.library import DocumentLibrary
    from edgechat.documents.retrieval import reranker_here

    library = DocumentLibrary(embedder_here, reranker_here)
    library.on_note = note
    try:
        await library.refresh(names)
        return await library.best(names, question, limit)
    finally:
        await library.close()


def _update(names: Sequence[str]) -> list[Update]:
    """Update collections, and print notes about skipped files."""
    import asyncio

    from edgechat.documents.embedding import embedder_here
    from edgechat.documents.library import DocumentLibrary

    async def work(status: StatusLine) -> list[Update]:
        library = DocumentLibrary(embedder_here)

        def show(verb: str, progress: Progress) -> None:
            status.show(f"{verb} {progress.done:,} of {progress.total:,}: {progress.name}")

        try:
            updates = await library.refresh(names, partial(show, "reading"), must_write=True)
            await library.embed(names, partial(show, "embedding"))
        finally:
            await library.close()
        return updates

    with StatusLine(sys.stderr) as status:
        updates = asyncio.run(work(status))
    for told in updates:
        for root in told.away:
            note(root.away)
        for file in told.left_out[:_MOST_TOLD]:
            note(f"{file.name}: {file.note}.")
        if (more := len(told.left_out) - _MOST_TOLD) > 0:
            note(f"{more:,} more files are skipped or incomplete.")
        if told.others:
            note(f"{told.others.about}.")
        if not told.is_complete:
            note("there are more files than edgechat reads; some are missing.")
    return updates


def _ask_about(name: str, roots: Sequence[Path]) -> None:
    """Ask the user before reading huge folders for the first time."""
    known = next((one.roots for one in known_collections() if one.name == name), ())
    for root in roots:
        if str(root) not in known and (found := survey(root)).is_huge:
            print(flat(f"{root}: {found.about}. Reading them takes a long time."))
            confirm("Read them all?", "Nothing was added", "Name a smaller folder, or add --yes.")


def _recommend_embedder() -> None:
    """Recommend an embedding model for this machine. Works offline, since the model's header is shipped."""
    from edgechat.planner.ranking.suggestions import recommended_embedder

    with suppress(EdgechatError):
        if (found := recommended_embedder()) is not None and found.entry is not None:
            pull = f"edgechat pull {found.entry.name} ({mebibytes(found.size)})"
            print(f"To search by meaning, too: {pull}, then edgechat docs update")


def _check_apart(collection: Collection, roots: Sequence[Path]) -> None:
    """Raise DocumentError if a folder overlaps one in the collection, as files would be indexed twice."""
    for known in (Path(one.path) for one in collection.roots()):
        for root in roots:
            if root != known and (root in known.parents or known in root.parents):
                raise DocumentError(
                    f"{one_line(str(root))} overlaps {one_line(str(known))}, which is in {collection.name}.",
                    hint=f"Choose another name: edgechat docs add --name NAME {shlex.quote(str(root))}",
                )


def _as_json(one: KnownCollection) -> dict[str, object]:
    if one.counts is None:
        return {"name": one.name, "problem": one.problem}
    return {
        "name": one.name,
        "paths": one.roots,
        "away": [root.path for root in one.away],
        "files": one.counts.files,
        "passages": one.counts.passages,
        "bytes": one.counts.n_bytes,
        "embedded": one.counts.embedded,
        "unread": list(one.unread),
    }


def _amount(counts: Counts) -> str:
    files = f"{counts.files:,} file{'s' * (counts.files != 1)}"
    by_meaning = f", {counts.embedded:,} by meaning" if counts.embedded else ""
    passages = f"{counts.passages:,} passage{'s' * (counts.passages != 1)}"
    return f"{files}, {passages}{by_meaning}, {mebibytes(counts.n_bytes)} of text"
