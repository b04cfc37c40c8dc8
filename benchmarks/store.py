"""What the store costs with many conversations: opening, listing, searching, writing.

    python -m benchmarks.store [--chats 1000] [--turns 50]

The text consists of words with the frequencies of natural language (Zipf's law), about 400 characters per
turn. Each figure is the median of several calls through the store's own thread, next to the slowest of them.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

from edgechat.chat.records import Chat, Turn
from edgechat.chat.storage.store import Store

N_WORDS = 30_000
RARE = "zyzzyva"
REPEATS = 15


class Writer:
    """Generates text from a fixed seed; one text in a thousand contains a rare word."""

    def __init__(self) -> None:
        self.random = random.Random(7)
        letters = "etaoinshrdlucmfwypvbgkqjxz"
        weights = [1 / (rank + 2) for rank in range(len(letters))]
        words = {
            "".join(self.random.choices(letters, weights, k=self.random.randint(2, 10)))
            for _ in range(2 * N_WORDS)
        }
        self.words = sorted(words - {RARE}, key=lambda word: (len(word), word))[:N_WORDS]
        self._shares = list(itertools.accumulate(1 / (rank + 3) for rank in range(len(self.words))))

    def text(self, characters: int = 400) -> str:
        """Return a few lines; about one text in seven contains code or non-English letters."""
        words = self.random.choices(self.words, cum_weights=self._shares, k=characters // 5)
        if self.random.random() < 0.001:
            words[len(words) // 2] = RARE
        if self.random.random() < 0.15:
            words.insert(
                7, self.random.choice(["`for i in range(10): print(i)`", "über naïve", "日本の天気"])
            )
        text = " ".join(words)[:characters]
        return text.replace(" the ", ".\n\nThe ", 1)


def chat(number: int, title: str, when: float) -> Chat:
    name = uuid.UUID(int=random.Random(number).getrandbits(128)).hex
    return Chat(id=name, title=title, model="guide", date="2026-08-01", created_at=when, updated_at=when)


async def fill(path: Path, chats: int, turns: int) -> None:
    """Write a store with that many conversations and turns."""
    writer, store = Writer(), await Store.open(path)
    for number in range(chats):
        when = time.time() - 3600.0 * (chats - number)
        one, said = chat(number, writer.text(30), when), list[Turn]()
        for at in range(turns):
            said.append(turn_of(one.id, writer.text(), said[-1].id if said else None, at, when))
        await store.add(one, said)
    await store.close()


def turn_of(chat_id: str, text: str, parent: str | None, at: int, when: float) -> Turn:
    return Turn(
        id=uuid.uuid4().hex,
        chat_id=chat_id,
        role="assistant" if at % 2 else "user",
        content=text,
        parent_id=parent,
        created_at=when + at,
    )


async def timed(work: Callable[[], Awaitable[object]], repeats: int = REPEATS) -> list[float]:
    """Return how long each call takes, in milliseconds."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        await work()
        seconds.append(1000 * (time.perf_counter() - began))
    return seconds


def row(name: str, milliseconds: list[float], note: str = "") -> None:
    print(f"{name:<38}{statistics.median(milliseconds):>8.1f} ms{max(milliseconds):>9.1f} ms  {note}")


async def opened_and_closed(path: Path) -> None:
    await (await Store.open(path)).close()


async def measure_reading(path: Path) -> None:
    """Print how long opening, listing and searching take."""
    writer = Writer()
    common, other = writer.words[0], writer.words[3]
    row("open and close", await timed(lambda: opened_and_closed(path)))
    store = await Store.open(path)
    row("headlines(60)", await timed(lambda: store.headlines(60)))
    row("recent_questions(100)", await timed(lambda: store.recent_questions(100)))
    chat_id = (await store.headlines(1))[0].chat.id
    searches = {
        "a rare word": RARE,
        "a word of most turns": common + " ",
        "two words of most turns": f"{common} {other}",
        "a common and a rare word": f"{common} {RARE}",
        "two letters": common[:2],
        "one letter": common[:1],
        "no word of it": "qqqqzzzz",
        "signs (looked for letter by letter)": "range(10):",
        "Chinese, which is there": "天気",
        "Chinese, which is not": "電車",
    }
    for name, typed in searches.items():
        found = await store.search(typed)
        row(f"search: {name}", await timed(lambda typed=typed: store.search(typed)), f"{len(found)} hits")  # type: ignore[misc]
    found = await store.search(common, chat_id=chat_id)
    row(
        "search: a common word in one chat",
        await timed(lambda: store.search(common, chat_id=chat_id)),
        f"{len(found)} hits",
    )
    await store.close()


async def measure_writing(path: Path, count: int = 300) -> None:
    """Print the cost of writing a turn, with and without the index, and of deleting."""
    writer, store = Writer(), await Store.open(path)
    one = chat(10**9, "new", time.time())
    await store.add(one, [turn_of(one.id, "first", None, 0, time.time())])

    async def write() -> None:
        await store.add_turn(turn_of(one.id, writer.text(), None, 1, time.time()))

    row("a turn is written", await timed(write, count))
    victims = iter([head.chat.id for head in await store.headlines(10, 5)])
    row("a chat is deleted for good", await timed(lambda: store.delete(next(victims)), 5))
    db = store._db
    assert db is not None
    triggers = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")]
    for name in triggers:
        db.execute(f"DROP TRIGGER {name}")
    row("a turn is written, without the index", await timed(write, count))
    await store.close()


async def run(chats: int, turns: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chats.db"
        began = time.perf_counter()
        await fill(path, chats, turns)
        seconds, size = time.perf_counter() - began, path.stat().st_size / 2**20
        print(f"{chats} conversations of {turns} turns: {size:.0f} MiB, made in {seconds:.0f} s")
        print(f"{'':<38}{'median':>11}{'slowest':>12}")
        await measure_reading(path)
        await measure_writing(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--chats", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=50)
    options = parser.parse_args()
    asyncio.run(run(options.chats, options.turns))


if __name__ == "__main__":
    main()
