"""Write the guide's model card, with scores for several quantizations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import llama_cpp
from agreement import agreement
from corpus import Corpus
from exam import Case, Marked, Marks, invented, mark, right, stray
from export import QUANTS, TYPES
from export import write as export
from places import BUILD, DATA
from shape import DRAFT, GUIDE

CARD = DATA / "guide.md"
TEMPLATE = Path(__file__).with_name("card.md")


def write(corpus: Corpus, cases: tuple[Case, ...], load: Callable[..., llama_cpp.Llama], count: int) -> None:
    """Export the weights at every quantization, score them, and write the card next to the shipped files."""
    found: dict[str, tuple[int, Marks, int]] = {}
    for kind in TYPES:
        path = BUILD / "guide" / f"guide-{kind}.gguf"
        export(BUILD / "guide", path, kind)
        llama = load(path)
        marks = mark(corpus, llama, cases)
        found[kind] = path.stat().st_size, marks, len(invented(corpus, llama, stray(corpus, count)))
        print(f"{kind}: {score(marks.single)}, {score(marks.declined)}, {score(marks.dialogue)}", flush=True)
    drafts = agreement(load(DATA / "guide.gguf"), load(DATA / "guide-draft.gguf", every=True), cases)
    text = TEMPLATE.read_text(encoding="utf-8").format(
        size=GUIDE.size, guide=GUIDE, draft=DRAFT,
        parameters=GUIDE.parameters, draft_parameters=DRAFT.parameters,
        bytes=(DATA / "guide.gguf").stat().st_size, draft_bytes=(DATA / "guide-draft.gguf").stat().st_size,
        kinds=[kind.upper() for kind in QUANTS.values()],
        columns=row(f"{kind.upper()}{', shipped' if kind == QUANTS['guide'] else ''}" for kind in found),
        rule="---|" * len(found),
        sizes=row(f"{size / 1e6:.1f} MB" for size, _, _ in found.values()),
        single=row(score(marks.single) for _, marks, _ in found.values()),
        declined=row(score(marks.declined) for _, marks, _ in found.values()),
        dialogue=row(score(marks.dialogue) for _, marks, _ in found.values()),
        untrue=row(str(len(marks.untrue)) for _, marks, _ in found.values()),
        invented=row(str(wrong) for _, _, wrong in found.values()),
        stray=count, answers=len(drafts.answers), tokens=sum(map(len, drafts.answers)), foreseen=drafts.share,
        drafts="\n".join(
            f"| {n} | {drafts.acceptance(n):.1%} | {drafts.per_call(n):.2f} |" for n in (4, 8, 16)
        ),
        intents=round(len(corpus.answers), -1),
    )  # fmt: skip
    CARD.write_text(text, encoding="utf-8")
    print(CARD)


def row(cells: Iterable[str]) -> str:
    """Return the cells of a table row, separated by bars."""
    return " | ".join(cells)


def score(marked: list[Marked]) -> str:
    """Return a score as text: '128 of 150 (85 %)'."""
    return f"{right(marked)} of {len(marked)} ({right(marked) / max(1, len(marked)):.0%})".replace("%", " %")
