"""Embedding engine: computes vectors for texts, or scores if the model is a reranker.

Each step computes one batch, with texts from all requests if they fit. A different request goes first in each
batch, so that a request with many texts does not keep others waiting.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import psutil

from edgechat.base.errors import EdgechatError, LoadFailed, NotEmbeddable, PromptTooLong
from edgechat.engine import types
from edgechat.engine.backends.base import Vocabulary
from edgechat.engine.kv.snapshot import CacheMap, CacheStats, DraftingState, SchedulerState, Snapshot
from edgechat.engine.prompt.control_tokens import ControlTokens
from edgechat.engine.prompt.token_counts import at_least, translate
from edgechat.engine.protocol import cannot_chat
from edgechat.engine.scheduling.preparation import fault
from edgechat.engine.types import Embed, ErrorInfo, Event, Failed
from edgechat.engine.worker import messages
from edgechat.engine.worker.load_report import LoadReport, anonymous_memory
from edgechat.engine.worker.messages import Command, Inspected, WorkerEvent
from edgechat.models.local.upkeep import note_use
from edgechat.planner.plan import LoadPlan

if TYPE_CHECKING:
    from edgechat.engine.backends.llama_cpp import LlamaCppEmbedder

_BATCH = 512  # maximum tokens in a call with several texts, which cannot be interrupted
_LARGEST = 48 << 20  # maximum size of an answer in bytes, because it must fit into one message
_CUT = 16  # characters kept per token when a text is truncated; nearly all tokens are shorter
_NO_DRAFTS = "It is an embedding model."
_DOCUMENT = "{document}"
_ANOTHER = "Look for another file of the same model: this one was converted by an old or unusual program."
_PLACES = re.compile(r"\{(query|document)\}")
_PAIR = "A document and its query together have"


@dataclass(slots=True, eq=False)
class _Job:
    """A request that is being processed."""

    id: str
    texts: deque[str | tuple[int, ...]]
    cut: bool = False
    query: str | None = None
    tokens: list[int] = field(default_factory=list)
    """Tokens of the next text; empty until it has been tokenized."""
    vectors: list[bytes] = field(default_factory=list)
    n_tokens: int = 0


class EmbeddingEngine:
    """Serves many requests with one embedding model. Not thread-safe: call all methods from one thread."""

    def __init__(self, embedder: LlamaCppEmbedder) -> None:
        """Raises LoadFailed if the model is a reranker that cannot be used."""
        self.vocabulary = embedder.vocabulary
        self._embedder = embedder
        self._pairs = PairPrompt(embedder.vocabulary, embedder.rerank_template)
        if embedder.reranks:
            self._pairs.check()
        self._jobs: deque[_Job] = deque()
        self._batches = [0] * embedder.n_seq_max

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not self._jobs

    def submit(self, request: Embed) -> list[Event]:
        """Queue a request."""
        if not request.texts:
            return [types.Embedded(request.request_id, (), 0)]
        if len(request.texts) * 4 * self._embedder.dimensions > _LARGEST:
            most = _LARGEST // (4 * self._embedder.dimensions)
            error = NotEmbeddable(
                f"{len(request.texts)} texts are too many for one request.",
                hint=f"Send up to {most} at once.",
            )
            return [Failed(request.request_id, ErrorInfo.of(error))]
        self._jobs.append(_Job(request.request_id, deque(request.texts), request.cut, request.query))
        return []

    def cancel(self, request_id: str) -> list[Event]:
        """Cancel a request. Unknown ids are ignored."""
        job = next((candidate for candidate in self._jobs if candidate.id == request_id), None)
        if job is None:
            return []
        self._jobs.remove(job)
        return [types.Finished.cancelled(job.id, job.n_tokens)]

    def step(self) -> list[Event]:
        """Compute one batch and return the resulting events, or [] if there is nothing to do."""
        events: list[Event] = []
        batch = list(self._next_batch(events))
        if not batch:
            return events
        try:
            vectors = self._embedder.embed([tokens for _, tokens in batch])
        except Exception as error:
            affected = dict.fromkeys(job for job, _ in batch if job in self._jobs)
            error = fault(error)
            return events + [self._fail(job, error) for job in affected]
        self._batches[len(batch) - 1] += 1
        for (job, tokens), vector in zip(batch, vectors, strict=True):
            job.vectors.append(vector.astype("<f4").tobytes())
            job.n_tokens += len(tokens)
        done = [job for job in self._jobs if not job.texts and not job.tokens]
        for job in done:
            self._jobs.remove(job)
            events.append(types.Embedded(job.id, tuple(job.vectors), job.n_tokens))
        self._jobs.rotate(-1)
        return events

    def _next_batch(self, events: list[Event]) -> Iterator[tuple[_Job, list[int]]]:
        """Yield each text's job and tokens for the next call. A job fails if one of its texts is invalid."""
        left = min(self._embedder.n_batch, _BATCH)
        n = 0
        for job in list(self._jobs):
            while n < self._embedder.n_seq_max and (job.texts or job.tokens):
                try:
                    tokens = job.tokens = job.tokens or self._tokens(job.texts.popleft(), job)
                except Exception as error:
                    events.append(self._fail(job, fault(error)))
                    break
                if n and len(tokens) > left:
                    return
                job.tokens = []
                left -= len(tokens)
                n += 1
                yield job, tokens

    def _tokens(self, text: str | tuple[int, ...], job: _Job) -> list[int]:
        if job.query is not None:
            tokens = self._pair(job.query, text, cut=job.cut)
        else:
            tokens = self._text(text, cut=job.cut)
        if not tokens:
            raise NotEmbeddable("An empty text has no embedding.", hint="Omit it.")
        return tokens

    def _text(self, text: str | tuple[int, ...], *, cut: bool) -> list[int]:
        vocabulary, longest = self.vocabulary, self._embedder.longest
        if cut:
            text = text[: _CUT * longest]
        elif isinstance(text, str) and (more := at_least(text, longest, vocabulary.whole)):
            raise _too_long(f"more than {more}", longest)
        tokens = vocabulary.whole(text) if isinstance(text, str) else list(text)
        if any(not 0 <= token < vocabulary.size for token in tokens):
            raise NotEmbeddable(
                f"Unknown tokens were given; the model's tokens are 0 to {vocabulary.size - 1}.",
                hint="Send texts instead of tokens.",
            )
        if len(tokens) > longest and cut:
            return [*tokens[: longest - 1], tokens[-1]]  # the last may be a special token, such as [SEP]
        if len(tokens) > longest:
            raise _too_long(str(len(tokens)), longest)
        return tokens

    def _pair(self, query: str, document: str | tuple[int, ...], *, cut: bool) -> list[int]:
        longest = self._embedder.longest
        if not isinstance(document, str):
            raise NotEmbeddable("A reranking model reads texts, not tokens.", hint="Send texts.")
        if cut:
            most = _CUT * longest
            return self._pairs.beginning(query[:most], document[:most], longest)
        if more := at_least(query + document, longest, self.vocabulary.whole):
            raise _too_long(f"more than {more}", longest, _PAIR)
        tokens = self._pairs.tokens(query, document)
        if len(tokens) > longest:
            raise _too_long(str(len(tokens)), longest, _PAIR)
        return tokens

    def _fail(self, job: _Job, error: EdgechatError) -> Event:
        self._jobs.remove(job)
        return Failed(job.id, ErrorInfo.of(error))

    def snapshot(self) -> Snapshot:
        """Return a snapshot that shows no cache and no drafts."""
        work = SchedulerState(
            running=min(len(self._jobs), self._embedder.n_seq_max),
            waiting=max(0, len(self._jobs) - self._embedder.n_seq_max),
            settling=False,
            chunk_tokens=min(self._embedder.n_batch, _BATCH),
            step_seconds=0.0,
            batches=tuple(self._batches),
        )
        drafting = DraftingState(
            sources=(), lengths=(), step_seconds=0.0, costs=(), speedup=1.0, purse=0.0, why_off=_NO_DRAFTS
        )
        return Snapshot(
            cache=CacheMap(cells=0, used=0, runs=(), slots=(), n_slots=0, stats=CacheStats()),
            draft_cache=None,
            prompt=None,
            drafting=drafting,
            work=work,
            on_disk=None,
            memory_bytes=psutil.Process().memory_info().rss,
        )

    def warm_up(self) -> None:
        """Compute one token so that the weights are paged in."""
        self._embedder.embed([[0]])

    def close(self) -> None:
        """Free the model."""
        self._embedder.close()


def _too_long(tokens: str, longest: int, what: str = "A text has") -> PromptTooLong:
    return PromptTooLong(
        f"{what} {tokens} tokens; the model's limit is {longest}.", hint="Split it into shorter texts."
    )


class PairVocabulary(Vocabulary, Protocol):
    """A vocabulary that can join two texts."""

    def around_pair(self) -> tuple[list[int], list[int], list[int]]:
        """Return the token ids that go before, between and after the two texts."""


class PairPrompt:
    """Tokenizes pairs of a query and a document."""

    def __init__(self, vocabulary: PairVocabulary, template: str | None) -> None:
        """template: the one in the model's file, with '{query}' and '{document}' as placeholders."""
        self._vocabulary, self._template = vocabulary, template
        self._control = ControlTokens(vocabulary)

    def check(self) -> None:
        """Raise LoadFailed if nothing separates query and document, which would make scores meaningless."""
        if self._template is None and not self._vocabulary.around_pair()[1]:
            raise LoadFailed(
                "The model's file has neither a reranking template nor a separator token.",
                hint=_ANOTHER,
            )
        if self._template is not None and {*_PLACES.findall(self._template)} != {"query", "document"}:
            raise LoadFailed(
                "The reranking template in the model's file lacks the placeholder {query} or {document}.",
                hint=_ANOTHER,
            )

    def tokens(self, query: str, document: str) -> list[int]:
        """Return the token ids of a pair."""
        if self._template is None:
            before, between, behind = self._vocabulary.around_pair()
            return [*before, *self._plain(query), *between, *self._plain(document), *behind]
        texts = {"query": self._control.guard(query), "document": self._control.guard(document)}
        return self._control.tokens(_PLACES.sub(lambda place: texts[place[1]], self._template), bos=False)

    def beginning(self, query: str, document: str, longest: int) -> list[int]:
        """Return the token ids of a pair, shortening the document if there would be more than `longest`.

        The query may take up to a quarter of them. If the template alone is too long, it is truncated.
        """
        asked = self._plain(query)
        if len(asked) > (most := longest // 4):
            query = b"".join(map(self._vocabulary.piece, asked[:most])).decode("utf-8", "ignore")
        tokens = self.tokens(query, document)
        n_behind = len(self._behind())
        if len(tokens) <= longest or n_behind >= longest:
            return tokens[:longest]
        return tokens[: longest - n_behind] + tokens[len(tokens) - n_behind :]

    def _behind(self) -> list[int]:
        if self._template is None:
            return self._vocabulary.around_pair()[2]
        return self._control.tokens(self._template.rpartition(_DOCUMENT)[2], bos=False)

    def _plain(self, text: str) -> list[int]:
        return self._vocabulary.tokenize(text, bos=False, special=False)


def load(plan: LoadPlan, progress: Callable[[float], None]) -> tuple[EmbeddingEngine, types.ModelInfo]:
    """Load the model as planned, reporting progress, and warm it up."""
    # Imported here because this loads the native library.
    from edgechat.engine.backends.llama_cpp import LlamaCppEmbedder

    began = time.perf_counter()
    backend = LlamaCppEmbedder(plan, progress)
    touched, n_vocab = backend.touched_bytes, backend.vocabulary.size
    differences = LoadReport(plan).loaded(backend.buffers, touched, anonymous_memory(), n_vocab)
    engine = EmbeddingEngine(backend)
    engine.warm_up()
    note_use(plan.model_path)
    model = types.ModelInfo(
        name=plan.model_name,
        architecture=backend.architecture,
        backend=plan.backend,
        n_params=backend.n_params,
        context=backend.longest,
        train_context=backend.train_context,
        can_switch_thinking=False,
        template="own",
        load_ms=1000 * (time.perf_counter() - began),
        embedding=backend.dimensions,
        buffers=backend.buffers,
        differences=differences,
        memory_bytes=psutil.Process().memory_info().rss,
    )
    return engine, model


def handle(engine: EmbeddingEngine, command: Command) -> Sequence[WorkerEvent]:
    """Execute a command and return any immediate events."""
    match command:
        case Embed():
            return engine.submit(command)
        case messages.Cancel(request_id):
            return engine.cancel(request_id)
        case messages.Inspect():
            return [Inspected(engine.snapshot())]
        case messages.Persist(chat):
            return [types.Persisted(chat)]  # there is nothing to save
        case types.Translate(request_id, types.ChatRequest()):
            return [Failed(request_id, ErrorInfo.of(cannot_chat()))]
        case types.Translate():
            return [translate(engine.vocabulary, command)]
        case messages.Generate(request):
            return [Failed(request.id, ErrorInfo.of(cannot_chat()))]
    return []
