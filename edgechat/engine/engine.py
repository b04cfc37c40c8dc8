"""Engine core: each step plans a batch for the submitted requests, decodes it and samples tokens."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from functools import partial

import msgspec
import numpy as np

from edgechat.base.errors import DecodeFailed, EdgechatError, NotAnAdapter
from edgechat.engine.backends.base import (
    AdapterSet,
    Backend,
    BatchPart,
    CacheFull,
    Interrupted,
    Logits,
    MediaRun,
    is_media,
    key_of,
    media_runs,
)
from edgechat.engine.kv.state_store import KVStateStore
from edgechat.engine.prompt.media_tokens import MediaTokens, decoded
from edgechat.engine.prompt.prompts import Prompt, Prompts
from edgechat.engine.prompt.template import ChatTemplate
from edgechat.engine.prompt.token_counts import translate
from edgechat.engine.reply.constraints import Constraint, Constraints
from edgechat.engine.reply.generation import Generation, Logprobs, reply_of
from edgechat.engine.reply.grammar import grammar_of
from edgechat.engine.reply.reply import ReplyPart
from edgechat.engine.sampling import Sampler, check_bias
from edgechat.engine.scheduling.chat_cache import ChatCache
from edgechat.engine.scheduling.encoding import MediaEncoding
from edgechat.engine.scheduling.preparation import Preparation, explained, fault
from edgechat.engine.scheduling.scheduler import Planned, Scheduler
from edgechat.engine.scheduling.sequence import Sequence
from edgechat.engine.speculative.controller import Controller
from edgechat.engine.speculative.drafters import HeadDrafter, ModelDrafter, NgramDrafter
from edgechat.engine.speculative.estimates import StepCost
from edgechat.engine.speculative.speculation import Speculation, verify
from edgechat.engine.tool_calls import tools
from edgechat.engine.types import (
    CachePolicy,
    ChatRequest,
    Dropped,
    ErrorInfo,
    Event,
    Failed,
    Finished,
    FinishReason,
    Message,
    Prefill,
    Translate,
    Translated,
    Usage,
)

_NO_PREWARMING = CachePolicy(settle=False)
_NO_LOGITS: Logits = np.empty((0, 0), np.float32)


class EngineCore:
    """Serves many requests with one model. Not thread-safe: call all methods from one thread."""

    def __init__(
        self,
        backend: Backend,
        template: ChatTemplate,
        *,
        cache_policy: CachePolicy = _NO_PREWARMING,
        states: KVStateStore | None = None,
        model_drafter: ModelDrafter | None = None,
        ngrams: bool = False,
        controller: Controller | None = None,
    ) -> None:
        """states: where to save KV states on disk; None saves none. controller: decides how much to draft."""
        self.backend = backend
        self.template = template
        self.media_tokens = MediaTokens(backend.media_encoder, decoded, why_not=backend.no_vision)
        self.prompts = Prompts(template, backend.vocabulary, self.media_tokens)
        self.scheduler = Scheduler(backend)
        self.encoding = MediaEncoding(backend.media_encoder, self.media_tokens.held)
        self.scheduler.is_encoded = lambda seq, run: self.encoding.made(_key(seq, run)) is not None
        self._waits_for_media = False
        interruption = backend.interruption
        self.preparation = Preparation(done=interruption.interrupt if interruption else lambda: None)
        self.chat_cache = ChatCache(
            self.scheduler, backend, self._next_prompt, self.preparation, cache_policy, states
        )
        self.speculation = Speculation(
            backend,
            self.scheduler,
            controller or Controller(StepCost()),
            model=model_drafter,
            head=HeadDrafter(backend, backend.head) if backend.head is not None else None,
            ngram=NgramDrafter() if ngrams else None,
        )
        self.constraints = Constraints(backend.vocabulary)
        self.last_usage: Usage | None = None
        """Usage of the most recently finished request."""
        marks = template.marks
        self._marks = self._control_tokens((marks.open, marks.close, *marks.skip) if marks else ())
        self._call_marks = self._control_tokens(template.calls.marks)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compute and no background work to wait for."""
        return self.scheduler.is_idle and self.chat_cache.is_idle and not self.n_waiting

    @property
    def is_waiting(self) -> bool:
        """Whether nothing can be computed until background work finishes."""
        if not self.scheduler.is_idle:
            return self._waits_for_media
        return self.n_waiting > 0 or self.chat_cache.is_waiting

    def submit(self, request: ChatRequest) -> list[Event]:
        """Prepare and queue a request.

        Raises TemplateError, SwitchUnknown, PromptTooLong, SchemaError or BadRequest.
        """
        return self._queue(*self._prepare(request, time.perf_counter()))

    def begin(self, request: ChatRequest) -> None:
        """Prepare a request in the background. A later step queues it, or returns Failed."""
        work = partial(self._prepare, request, time.perf_counter())
        self.preparation.wait_for(self.preparation.submit(work), request, self._prepared)

    def translate(self, command: Translate) -> None:
        """Tokenize or detokenize in the background. A later step returns Translated or Failed."""
        work = self.preparation.submit(partial(self._translate, command))
        self.preparation.wait_for(work, ChatRequest(id=command.request_id), lambda _, done: [done.result()])

    def _translate(self, command: Translate) -> Translated:
        if not isinstance(command.what, ChatRequest):
            return translate(self.backend.vocabulary, command)
        tools.check(command.what)
        prompt = self.prompts.of(command.what, self.scheduler.cells)
        return Translated(command.request_id, tuple(prompt.tokens), b"")

    def _next_prompt(self, request: ChatRequest, reply: Message, cells: int) -> list[int]:
        """Return the tokens that a chat's next prompt is sure to start with, or [] if they are unknown."""
        try:
            prompt = self.prompts.next(request, reply, cells)
        except Exception as error:  # the chat also works without prewarming
            explained(error)
            return []
        return prompt.tokens if prompt is not None else []

    def _prepare(self, request: ChatRequest, arrived: float) -> tuple[Generation, str | None]:
        """Return a sequence for a request, and the grammar that the reply must follow, if any."""
        vocabulary = self.backend.vocabulary
        check_bias(request.sampling, vocabulary.size)
        tools.check(request)
        if request.text is not None:  # a raw prompt has no chat to save and no turns to drop
            request = msgspec.structs.replace(request, chat=None, overflow="error")
        adapters = self._adapters(request)
        prompt = self.prompts.of(request, self.scheduler.cells)
        sequence = Generation(
            request=request,
            tokens=prompt.tokens,
            n_prompt=len(prompt.tokens),
            sampler=Sampler(request.sampling),
            reply=reply_of(request, self.template, thinking=prompt.thinking),
            arrived=arrived,
            adapters=adapters,
            boundaries=prompt.boundaries,
            media=tuple(media_runs(prompt.tokens)),
            dropped=prompt.dropped,
            logprobs=None if request.logprobs is None else Logprobs(vocabulary, request.logprobs),
        )
        return sequence, grammar_of(request, self.template, vocabulary, thinking=prompt.thinking)

    def _adapters(self, request: ChatRequest) -> AdapterSet:
        if not request.adapters:
            return ()
        if self.backend.adapters is None:
            raise NotAnAdapter("This model does not support LoRA adapters, which require a GGUF model.")
        return self.backend.adapters.resolve(request.adapters)

    def _queue(self, sequence: Sequence, grammar: str | None) -> list[Event]:
        if grammar is not None:
            then = partial(self._begin_constrained, sequence)
            self.preparation.wait_for(self.constraints.of(grammar), sequence.request, then, sequence)
        else:
            self.chat_cache.begin(sequence)
        return [Dropped(sequence.id, sequence.dropped)] if sequence.dropped else []

    def cancel(self, request_id: str) -> list[Event]:
        """Stop a request. Its cached tokens stay valid. Unknown ids are ignored."""
        job = self.preparation.give_up(request_id)
        if job is not None and job.sequence is None:
            return [Finished.cancelled(request_id)]
        sequence = job.sequence if job is not None else self.scheduler.find(request_id)
        if not isinstance(sequence, Generation):
            return []
        events = self._finish(sequence, "cancelled")
        self._want_media()  # there may not be another step to do this
        return events

    def persist(self, chat: str | None) -> None:
        """Save a chat's state to disk; None saves every chat's. A later step returns Persisted."""
        self.chat_cache.persist(chat)

    def forget(self, chat: str) -> None:
        """Delete a chat's cache, in memory and on disk."""
        self.preparation.forget(chat)
        self.chat_cache.forget(chat)
        self.speculation.forget_chat(chat)

    @property
    def n_running(self) -> int:
        """Number of unfinished requests."""
        return sum(sequence.generates for sequence in self.scheduler.sequences) + self.n_waiting

    @property
    def n_waiting(self) -> int:
        """Number of requests that are waiting for a prompt, a grammar or the disk."""
        return self.preparation.n_waiting

    def warm_up(self, *, whole: bool = False) -> None:
        """Compute one token to page in the weights, and measure the cost of a call.

        whole: compute a full batch first, so that accelerators make their deferred allocations now.
        """
        token = self.backend.vocabulary.tokenize("a", bos=False, special=False)[:1]
        if whole:
            n = min(self.backend.n_batch, self.backend.context)
            self.backend.decode([BatchPart(seq=0, start=0, tokens=token * n, n_logits=1)])
            self.backend.truncate(0, 0)
        seconds = 0.0
        for _ in range(2):  # the first call pages in the weights; the second is timed
            began = time.perf_counter()
            self.backend.decode([BatchPart(seq=0, start=0, tokens=token, n_logits=1)])
            seconds = time.perf_counter() - began
            self.backend.truncate(0, 0)
        self.scheduler.cost.observe(1, 0, seconds)
        self.speculation.warm_up(token, seconds, whole=whole)

    def step(self) -> list[Event]:
        """Compute one batch and return its events; [] if there is nothing to do.

        An internal error fails one request and is logged with its traceback; other requests continue. If
        there is no request to fail, the error is raised.
        """
        events: list[Event] = []
        try:
            self._advance(events)
        except Exception as error:
            if self.scheduler.is_idle:
                raise
            events += self._fail(_youngest(self.scheduler.sequences), fault(error))
        return events

    def _advance(self, events: list[Event]) -> None:
        """Perform a step, appending its events to `events`."""
        events += self._finish_jobs()
        events += self.chat_cache.poll()
        events += self._handle_overflows()
        events += self._encode_media()
        planned = self.scheduler.plan()
        events += self._finish_prewarming()
        self._waits_for_media = not planned and self.encoding.is_running
        if not planned:
            return
        planned = self._with_drafts(planned)
        try:
            logits = self._decode(planned)
        except CacheFull:
            self._make_room(planned)  # the next step plans a batch that fits
            return
        except Interrupted as early:
            self.scheduler.interrupted(planned, early.n_kept)
            return
        except DecodeFailed as error:
            events += [event for sequence, _ in planned for event in self._fail(sequence, error)]
            return
        except Exception:  # what the cache holds for these sequences is now unknown
            sequences = [sequence for sequence, _ in planned]
            for sequence in sequences:
                sequence.draft = None
                if sequence is not _youngest(sequences):
                    self.scheduler.preempt(sequence)
            raise
        self._accept(planned, logits, events)
        events += self._finish_prewarming()

    def _encode_media(self) -> Iterator[Event]:
        """Start encoding the media that are needed next; fail requests whose media could not be encoded."""
        if self.backend.media_encoder is None:
            return
        failed: dict[tuple[int, ...], EdgechatError | None] = {}
        for sequence, run in self.scheduler.media():
            key = _key(sequence, run)
            error = failed.setdefault(key, self.encoding.failure(key))
            if error is not None and sequence in self.scheduler.running:
                yield from self._fail(sequence, error)
        self._want_media()

    def _want_media(self) -> None:
        if self.backend.media_encoder is not None:
            self.encoding.want([_key(sequence, run) for sequence, run in self.scheduler.media()])

    def _finish_jobs(self) -> Iterator[Event]:
        """Continue the requests whose background work has finished."""
        for job in self.preparation.ready():
            try:
                yield from job.then(job.request, job.future)
            except Exception as error:
                failed = explained(error)
                if job.sequence is not None:
                    yield from self._fail(job.sequence, failed)
                else:
                    yield Failed(job.request.id, ErrorInfo.of(failed))

    def _prepared(self, request: ChatRequest, prepared: Future[tuple[Generation, str | None]]) -> list[Event]:
        sequence, grammar = prepared.result()
        if request.chat is None:  # the chat may have been deleted in the meantime
            sequence.request = msgspec.structs.replace(sequence.request, chat=None)
        return self._queue(sequence, grammar)

    def _begin_constrained(
        self, sequence: Sequence, _: ChatRequest, constraint: Future[Constraint]
    ) -> list[Event]:
        sequence.sampler.constraint = constraint.result()
        self.chat_cache.begin(sequence)
        return []

    def _with_drafts(self, planned: Planned) -> Planned:
        """Add drafted tokens to the batch. If drafting fails, switch it off."""
        try:
            return self.speculation.draft(planned)
        except Exception as error:
            fault(error)
            self.speculation.stop()
            for sequence, _ in planned:
                sequence.draft = None
            return planned

    def _make_room(self, planned: Planned) -> None:
        self.speculation.gave_up()
        if any(sequence.draft for sequence, _ in planned):
            for sequence, _ in planned:
                sequence.draft = None
        else:
            self.scheduler.make_room(planned)

    def _decode(self, planned: Planned) -> Logits:
        began = time.perf_counter()
        for sequence, _ in planned:
            sequence.started = sequence.started or began
        n_streams = sum(sequence.n_pending == 1 for sequence, _ in planned)
        n_prompt = sum(len(part.tokens) for sequence, part in planned if sequence.n_pending > 1)
        try:
            with self.encoding.pausing():
                logits = self._compute(planned)
        except Interrupted:
            self.scheduler.cost.note_interruption(time.perf_counter() - began)
            raise
        if not any(sequence.draft for sequence, _ in planned):  # drafted rows cost more than rows in a chunk
            self.scheduler.cost.observe(n_streams, n_prompt, time.perf_counter() - began)
        self.scheduler.computed(planned)
        return logits

    def _compute(self, planned: Planned) -> Logits:
        """Return the batch's logits; there are none for media, or if the backend sampled the token itself."""
        stream, part = planned[0]
        if self.backend.adapters is not None:
            self.backend.adapters.use(stream.adapters)
        if is_media(part.tokens[0]):
            return self._compute_media(part)
        drawing = self.backend.drawing if len(planned) == 1 and part.n_logits == 1 else None
        if (
            drawing is None
            or not isinstance(stream, Generation)
            or stream.sampler.needs_logits
            or stream.logprobs is not None
        ):
            parts = [part for _, part in planned]
            interruption = self.scheduler.interruptible(planned)
            return interruption.decode_interruptibly(parts) if interruption else self.backend.decode(parts)
        stream.drawn = drawing.next_token(part, stream.sampler.sampling, stream.sampler.number)
        stream.sampler.advance()
        return _NO_LOGITS

    def _compute_media(self, part: BatchPart) -> Logits:
        made = self.encoding.made(key_of(part.tokens))
        if made is None or self.backend.media_encoder is None:  # dropped a moment ago: encode it again
            raise Interrupted((0,))
        self.backend.media_encoder.decode(part.seq, part.start, *made)
        return _NO_LOGITS

    def _accept(self, planned: Planned, logits: Logits, events: list[Event]) -> None:
        row = n_made = 0
        for sequence, part in planned:
            if not isinstance(sequence, Generation):
                continue
            if not part.n_logits:
                done = part.start + len(part.tokens)
                events.append(Prefill(sequence.id, done, len(sequence.tokens), sequence.n_cached or 0))
                continue
            if not sequence.n_generated:
                size = sequence.n_prompt
                events.append(Prefill(sequence.id, size, size, sequence.n_cached or 0))
            try:
                rows = logits[row : row + part.n_logits]
                chosen = self._sample(sequence, rows)
                if sequence.logprobs is not None:
                    sequence.logprobs.compute(rows, chosen)
                before = sequence.n_generated
                events += self._extend_by(sequence, chosen)
                n_made += max(sequence.n_generated - before, 1)
            except Exception as error:  # the other requests continue
                events += self._fail(sequence, fault(error))
            row += part.n_logits
        try:
            self.speculation.done([sequence for sequence, _ in planned], n_made)
        except Exception as error:
            fault(error)
            self.speculation.stop()

    def _sample(self, sequence: Generation, rows: Logits) -> list[int]:
        """Return the next tokens: the drafted tokens that were accepted, followed by a sampled one."""
        draft, sequence.draft = sequence.draft, None
        drawn, sequence.drawn = sequence.drawn, None
        if drawn is not None:
            return [drawn]
        if draft is None:
            return [sequence.sampler.choose(rows[0], sequence.tokens, sequence.constrained_reply)]
        chosen = verify(sequence.sampler, rows, sequence.tokens, draft, sequence.constrained_reply)
        self.scheduler.accept_draft(sequence, draft.tokens, len(chosen) - 1)
        self.speculation.verified(sequence, draft, len(chosen) - 1)
        return chosen

    def _extend_by(self, sequence: Generation, tokens: list[int]) -> list[Event]:
        """Add sampled tokens to their sequence until it ends or must drop turns."""
        events: list[Event] = []
        sequence.note_tokens(len(tokens), time.perf_counter())
        for token in tokens:
            events += self._extend(sequence, token)
            if sequence.slot is None:
                break
        return events

    def _extend(self, sequence: Generation, token: int) -> list[Event]:
        if self.backend.vocabulary.is_end(token):
            return self._finish(sequence, "stop")
        special = token in self._marks and sequence.reply.where is not ReplyPart.ANSWER
        special = special or (bool(sequence.request.tools) and token in self._call_marks)
        events = sequence.extend(token, self.backend.vocabulary.piece(token, special=special))
        if sequence.reply.stopped or sequence.is_complete:
            return events + self._finish(sequence, "stop")
        limit = sequence.request.max_tokens
        if limit is not None and sequence.n_generated >= limit:
            return events + self._finish(sequence, "length")
        if len(sequence.tokens) >= self.scheduler.cells:
            return events + self._overflow(sequence)
        return events

    def _overflow(self, sequence: Generation) -> list[Event]:
        """End a reply that has filled the context, or drop older turns to make room for the rest of it."""
        request = sequence.request
        if request.overflow != "window":
            return self._finish(sequence, "context")
        self.scheduler.remove(sequence, keep_cache=True)
        work = partial(
            self.prompts.shorter,
            request,
            self.scheduler.cells,
            dropped=sequence.dropped,
            generated=sequence.n_generated,
        )
        then = partial(self._resume_shortened, sequence)
        self.preparation.wait_for(self.preparation.submit(work), request, then, sequence)
        return []

    def _resume_shortened(
        self, sequence: Generation, _: ChatRequest, shortened: Future[Prompt | None]
    ) -> list[Event]:
        shorter = shortened.result()
        if shorter is None:
            return self._finish(sequence, "context")
        sequence.tokens = shorter.tokens + sequence.tokens[sequence.n_prompt :]
        sequence.n_prompt, sequence.boundaries = len(shorter.tokens), shorter.boundaries
        sequence.dropped, sequence.media = shorter.dropped, tuple(media_runs(shorter.tokens))
        sequence.n_cached = min(sequence.n_cached or 0, sequence.n_prompt)
        sequence.n_shifted = min(sequence.n_shifted, sequence.n_prompt)
        self.scheduler.resume(sequence)
        self.speculation.forget(sequence)
        return [Dropped(sequence.id, shorter.dropped)]

    def _handle_overflows(self) -> Iterator[Event]:
        """Shorten or end sequences that no longer fit because the backend has fewer cells than reported."""
        for sequence in self.scheduler.sequences:
            if len(sequence.tokens) <= self.scheduler.cells:
                continue
            try:
                if isinstance(sequence, Generation):
                    yield from self._overflow(sequence)
                else:
                    self.scheduler.remove(sequence, keep_cache=True)
            except Exception as error:
                yield from self._fail(sequence, fault(error))

    def _finish(self, sequence: Generation, reason: FinishReason) -> list[Event]:
        rest = sequence.finish(reason)
        if reason == "stop" and sequence.calls:
            reason = "tools"
        slot = sequence.slot
        if sequence in self.scheduler.sequences:
            self.scheduler.remove(sequence, keep_cache=True)
        self.chat_cache.end(sequence.request, sequence.message(), slot, sequence.adapters)
        self.speculation.ended(sequence)
        stats = sequence.tally.stats()
        self.last_usage = usage = sequence.usage()
        stop_text = sequence.reply.stop_text
        return [*rest, Finished(sequence.id, reason, usage, sequence.timings(), stats, stop_text)]

    def _fail(self, sequence: Sequence, error: EdgechatError) -> list[Event]:
        if sequence in self.scheduler.sequences:
            self.scheduler.remove(sequence, keep_cache=False)
        self.speculation.forget(sequence)
        return [Failed(sequence.id, ErrorInfo.of(error))] if sequence.generates else []

    def _finish_prewarming(self) -> Iterator[Event]:
        for sequence in list(self.scheduler.running):
            if sequence.generates or sequence.n_pending:
                continue
            try:
                yield from self.chat_cache.prewarmed(sequence)
            except Exception as error:  # the chat also works without prewarming
                yield from self._fail(sequence, fault(error))

    def _control_tokens(self, marks: tuple[str, ...]) -> frozenset[int]:
        """Return the control tokens in the marks. Unlike other tokens, they have no text."""
        vocabulary = self.backend.vocabulary
        ids = {token for text in marks for token in vocabulary.tokenize(text, bos=False, special=True)}
        return frozenset(token for token in ids if not vocabulary.piece(token))

    def close(self) -> None:
        """Stop all background work and free the backend."""
        self.preparation.close()
        self.encoding.close()
        self.chat_cache.close()
        self.constraints.close()
        self.template.close()
        self.speculation.close()
        self.backend.close()


def _key(sequence: Sequence, run: MediaRun) -> tuple[int, ...]:
    return key_of(sequence.tokens[run.start : run.stop])


def _youngest(sequences: Iterable[Sequence]) -> Sequence:
    """Return the newest sequence, which is the most likely cause of an error of unknown origin."""
    return max(sequences, key=lambda sequence: (not sequence.generates, sequence.arrived))
