"""`edgechat docs`: documents about which models can be asked. docs/documents.md says what --json prints."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from edgechat.base.errors import DocumentError, EdgechatError, ToolError
from edgechat.base.process.spawn import frozen
from edgechat.base.text import flat, mebibytes, one_line, printable
from edgechat.cli.output.layout import table
from edgechat.cli.output.status import StatusLine
from edgechat.cli.terminal_io import confirm, note, print_json
from edgechat.documents import registry
from edgechat.documents.collection import Collection, Counts
from edgechat.documents.embedding import embedder_here
from edgechat.documents.indexing import Progress, Update
from edgechat.documents.known import (
    KnownCollection,
    collection_at,
    free_name,
    known_collections,
    root_of,
    survey,
)
from edgechat.documents.library import DocumentLibrary, Given
from edgechat.documents.retrieval import reranker_here

_MOST_TOLD = 10
"""Files that are left out and named; of more, only the number is told."""


def add(paths: Sequence[str], name: str | None, *, yes: bool) -> None:
    """Add folders and files, and read them; huge ones after asking. Raises DocumentError."""
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
        note("there is no text in it yet that could be read. What is added to it later is found.")
        return
    print(flat(f'To ask about it: edgechat run MODEL --docs {shlex.quote(name)} "QUESTION"'))
    if is_new and not counts.embedded:
        _recommend_embedder()


def list_documents(*, json: bool) -> None:
    """Print all collections, also those that cannot be used."""
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


def update(names: Sequence[str]) -> None:
    """Read what has changed. Raises DocumentError."""
    if not (names := names or _usable()):
        return
    for name, told in zip(names, _update(names), strict=True):
        changes = [f"{told.read:,} read"] if told.read else []
        changes += [f"{told.removed:,} gone"] if told.removed else []
        print(flat(f"{name}: {', '.join(changes) or 'nothing has changed'}."))


def search(names: Sequence[str], question: str, limit: int, *, json: bool) -> None:
    """Print passages for a question, of all documents if none are named. Raises DocumentError."""
    names = names or _usable()
    found = asyncio.run(_found(names, question, limit)) if names else []
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
    elif names and not found:
        print("Nothing in these documents has a word of this.")
    for one in () if json else found:
        print(flat(one.name if len(names) == 1 else f"{one.source.collection}: {one.name}"))
        print("\n".join(f"    {line}" for line in printable(one.text).splitlines()), end="\n\n")


def remove(name: str, paths: Sequence[str], *, yes: bool) -> None:
    """Forget a collection, or some of its folders and files, after asking. Raises DocumentError."""
    known = next((one for one in known_collections() if one.name == name), None)
    if known is None or (paths and known.problem):
        registry.open_collection(name).close()  # which says what is wrong
    assert known is not None
    chosen = [str(Path(path).expanduser().absolute()) for path in paths]
    for path in chosen:
        if path not in known.roots:
            hint = "There are: " + ", ".join(map(one_line, known.roots))
            raise DocumentError(f"{one_line(path)} is no part of {name}.", hint=hint)
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


def serve(names: Sequence[str]) -> None:
    """Offer collections, or all there are, over MCP until stdin ends. Raises DocumentError and ToolError."""
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
    """Return the names of all collections that can be read; say what is wrong with the others, or all."""
    known = known_collections()
    if not known:
        note("There are no documents yet. To add some: edgechat docs add FOLDER")
    for one in known:
        if one.problem:
            note(f"{one.problem} {one.hint}")
    return [one.name for one in known if not one.problem]


async def _found(names: Sequence[str], question: str, limit: int) -> list[Given]:
    library = DocumentLibrary(embedder_here, reranker_here)
    library.on_note = note
    try:
        await library.refresh(names)
        return await library.best(names, question, limit)
    finally:
        await library.close()


def _update(names: Sequence[str]) -> list[Update]:
    """Bring collections up to date, and say what is left out of them."""

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
            note(f"{more:,} more files are left out, or not whole.")
        if told.others:
            note(f"{told.others.about}.")
        if not told.is_complete:
            note("there are more files than edgechat looks at; some are not in it.")
    return updates


def _ask_about(name: str, roots: Sequence[Path]) -> None:
    """Ask before folders are read that take long, unless they were read before."""
    known = next((one.roots for one in known_collections() if one.name == name), ())
    for root in roots:
        if str(root) not in known and (found := survey(root)).is_huge:
            print(flat(f"{root}: {found.about}. Reading them takes long."))
            confirm("Read them all?", "Nothing was added", "Name a smaller folder, or add --yes.")


def _recommend_embedder() -> None:
    """Print which embedding model suits this machine; its header ships, so nothing is asked of the hub."""
    from edgechat.planner.ranking.embedders import recommended_embedder

    with suppress(EdgechatError):
        if (found := recommended_embedder()) is not None and found.entry is not None:
            pull = f"edgechat pull {found.entry.name} ({mebibytes(found.size)})"
            print(f"To search by meaning, too: {pull}, then edgechat docs update")


def _check_apart(collection: Collection, roots: Sequence[Path]) -> None:
    """Refuse a folder in, or around, one that is in the collection: its files would be there twice."""
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
