"""Child process that scores a text with one or more models, which take turns after every call.

The method is the same as llama-perplexity's. The text is split into chunks of n_ctx tokens. In each chunk,
the first token is replaced by the beginning-of-sequence token if the model uses one, and the tokens in the
second half are scored. A chunk is processed in calls of up to n_batch tokens, so that only one call's logits
need to be in memory at a time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgechat.base.errors import BadRequest, DecodeFailed
from edgechat.base.text import rough_seconds
from edgechat.bench.divergence import KLD, NLL, Codes, Floats, coded, token_scores
from edgechat.bench.process import Tell, answer
from edgechat.bench.quality_files import (
    BaseFile,
    BaseFileWriter,
    QualityTask,
    Scored,
    ScoredModel,
    ScoreFile,
    read_text,
    scored,
)
from edgechat.engine.backends.base import Backend, BatchPart, Vocabulary
from edgechat.engine.worker.worker import open_backend

_SEQUENCE = 0
_SHORTEST = 512  # smallest --ctx allowed, in tokens
_SPEED_DEPTH, _SPEED_TOKENS = 64, 24
"""How many tokens are cached before speed is measured, and how many are then decoded one at a time."""
Tokens = npt.NDArray[np.int32]


@dataclass(slots=True)
class _Loaded:
    """A loaded model, with its score file and the running sums of its scores."""

    model: ScoredModel
    backend: Backend
    file: ScoreFile
    sums: npt.NDArray[np.float64]
    n_tokens: int

    @classmethod
    def of(cls, model: ScoredModel, n_scored: int) -> _Loaded:
        """Load a model and open its score file. Raises EdgechatError."""
        file = ScoreFile(Path(model.scores), n_scored)
        scores = file.scores()
        return cls(model, open_backend(model.plan, None), file, scores.sum(1, np.float64), scores.shape[1])

    def add(self, scores: Floats) -> None:
        """Store the scores of the next chunk."""
        self.file.append(scores)
        self.sums += scores.sum(1, np.float64)
        self.n_tokens += scores.shape[1]


def score(task: QualityTask, tell: Tell) -> Scored:
    """Score the text as the task requests. Raises EdgechatError."""
    base_file = BaseFile(Path(task.base_file)) if task.base_file else None
    with ExitStack() as stack:
        loaded: list[_Loaded] = []
        for model in task.models:
            tell(f"loading {model.label}")
            loaded.append(_Loaded.of(model, scored(task.n_ctx)))
            stack.callback(loaded[-1].backend.close)
        if base_file is not None:
            chunks = base_file.tokens
        else:
            tell("reading the text")
            chunks = _chunks(
                [one.backend.vocabulary for one in loaded], read_text(Path(task.text)), task.n_ctx
            )
        if task.n_chunks:
            chunks = chunks[: task.n_chunks]
        pool = stack.enter_context(ThreadPoolExecutor(max(one.model.plan.threads for one in loaded)))
        _Scoring(task, loaded, chunks, base_file, pool).run(tell)
    return Scored(len(chunks))


def _chunks(vocabularies: Sequence[Vocabulary], text: str, n_ctx: int) -> Tokens:
    """Return the text as tokens [n_chunks, n_ctx]. All models must split it into the same tokens."""
    first = vocabularies[0].tokenize(text, bos=True, special=False)
    for other in vocabularies[1:]:
        if other.tokenize(text, bos=True, special=False) != first:
            raise BadRequest(
                "The models cannot be compared: they split the text into different tokens.",
                hint="Compare quantizations of the same model.",
            )
    n_chunks = len(first) // n_ctx
    if not n_chunks:
        raise BadRequest(
            f"The text has only {len(first)} tokens, but a chunk needs {n_ctx}.",
            hint="Give a longer text: --text FILE" + (", or a smaller --ctx" if n_ctx > _SHORTEST else ""),
        )
    return np.array(first[: n_chunks * n_ctx], np.int32).reshape(n_chunks, n_ctx)


class _Scoring:
    def __init__(
        self,
        task: QualityTask,
        loaded: Sequence[_Loaded],
        chunks: Tokens,
        base_file: BaseFile | None,
        pool: Executor,
    ) -> None:
        self._task, self._loaded, self._chunks, self._pool = task, loaded, chunks, pool
        self._base_file = base_file
        first = loaded[0].backend.vocabulary
        self._width = min(one.backend.vocabulary.size for one in loaded)
        """Number of logits to compare in each row, because some models pad their rows."""
        self._bos = first.tokenize("", bos=True, special=False)[:1]
        n_base = base_file.n_vocab if base_file is not None else first.size
        if base_file is not None and any(one.backend.vocabulary.size != n_base for one in loaded):
            raise BadRequest(
                f"The vocabulary of the base file's model has {n_base} tokens, but that of "
                f"{loaded[0].model.label} has {first.size}."
            )
        self._writer = BaseFileWriter(Path(task.save_base), chunks, first.size) if task.save_base else None

    def run(self, tell: Tell) -> None:
        """Score all chunks that have not been scored yet."""
        for one in self._loaded:
            if not one.file.tokens_per_second:
                tell(f"measuring the speed of {one.model.label}")
                one.file.begin(_decode_speed(one.backend, self._chunks[0]))
        tell("scoring")
        began = time.perf_counter()
        todo = [at for at in range(len(self._chunks)) if self._missing(at)]
        for n_done, at in enumerate(todo, 1):
            self._score_chunk(at)
            left = (time.perf_counter() - began) / n_done * (len(todo) - n_done)
            tell(f"chunk {at + 1} of {len(self._chunks)}, {rough_seconds(left)} left: {self._figures()}")
        if self._writer is not None:
            self._writer.finish()

    def _missing(self, chunk: int) -> list[_Loaded]:
        """Return the models that have yet to process a chunk, with the base first."""
        found = [one for one in self._loaded if one.file.n_chunks <= chunk]
        is_base_needed = self._writer is not None or (self._task.has_base and found)
        if is_base_needed and self._loaded[0] not in found:
            found.insert(0, self._loaded[0])
        return found

    def _score_chunk(self, chunk: int) -> None:
        models = self._missing(chunk)
        tokens, n_ctx = self._chunks[chunk], self._task.n_ctx
        fed = tokens.copy()
        fed[:1] = self._bos or fed[:1]
        parts: dict[int, list[Floats]] = {at: [] for at in range(len(models))}
        for one in models:
            one.backend.truncate(_SEQUENCE, 0)
        for start, stop in self._calls():
            first_row = max(start, n_ctx // 2)
            n_scored = min(stop, n_ctx - 1) - first_row
            targets = tokens[first_row + 1 : first_row + 1 + max(0, n_scored)]
            base: Floats | Codes | None = None
            if self._base_file is not None and len(targets):
                base = self._base_file.rows(chunk, first_row - n_ctx // 2, n_scored)
            part = BatchPart(_SEQUENCE, start, fed[start:stop].tolist(), max(0, stop - first_row))
            for at, one in enumerate(models):
                rows = one.backend.decode([part])[: len(targets)]
                if not len(targets):  # nothing to score: first half, or last token only
                    continue
                if at == 0 and self._writer is not None:
                    self._writer.write(coded(rows, self._pool))
                rows = rows[:, : self._width]
                parts[at].append(token_scores(rows, targets, base, self._pool))
                if self._task.has_base and at == 0:
                    base = rows
        for at, one in enumerate(models):
            scores = np.concatenate(parts[at], axis=1)
            if not np.isfinite(scores[NLL : KLD + 1]).all():
                raise DecodeFailed(
                    f"{one.model.label} computed numbers that are not valid logits (chunk {chunk + 1})."
                )
            if one.file.n_chunks == chunk:
                one.add(scores)

    def _calls(self) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each call's range of tokens."""
        n_batch = min(one.backend.n_batch for one in self._loaded)
        for start in range(0, self._task.n_ctx, n_batch):
            yield start, min(start + n_batch, self._task.n_ctx)

    def _figures(self) -> str:
        said = []
        for one in self._loaded[self._task.has_base :] or self._loaded:
            mean = one.sums / max(1, one.n_tokens)
            compared = self._task.has_base or self._base_file is not None
            what = f"{mean[KLD]:.4f} nats" if compared else f"perplexity {np.exp(mean[NLL]):.4g}"
            said.append(f"{one.model.label} {what}")
        return ", ".join(said)


def _decode_speed(backend: Backend, tokens: Tokens) -> float:
    """Measure the speed of decoding tokens one at a time, in tokens per second."""
    backend.truncate(_SEQUENCE, 0)
    depth = min(_SPEED_DEPTH, len(tokens) // 2)
    backend.decode([BatchPart(_SEQUENCE, 0, tokens[:depth].tolist(), 1)])
    count = min(_SPEED_TOKENS, len(tokens) - depth - 1)

    def decode(at: int) -> float:
        began = time.perf_counter()
        backend.decode([BatchPart(_SEQUENCE, at, tokens[at : at + 1].tolist(), 1)])
        return time.perf_counter() - began

    decode(depth)  # not counted, since the first call may allocate memory
    return 1 / statistics.median(decode(depth + 1 + at) for at in range(count))


def main() -> None:
    """Run the QualityTask sent by the parent process."""
    answer(QualityTask, score)
