"""The engine: submit requests, then step(): plan a batch, decode it, accept the results."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial

import msgspec
import numpy as np

from edgechat.base.errors import DecodeFailed, EdgechatError
from edgechat.engine.backends.base import Backend, BatchPart, CacheFull, Interrupted, Logits
from edgechat.engine.kv.state_store import KVStateStore
from edgechat.engine.prompt.prompts import Prompt, Prompts
from edgechat.engine.prompt.template import ChatTemplate
from edgechat.engine.prompt.translation import translate
from edgechat.engine.reply.constraints import Constraints
from edgechat.engine.reply.generation import Generation, Logprobs
from edgechat.engine.reply.reply import ReplyPart
from edgechat.engine.reply.reply_form import grammar_of, reply_of
from edgechat.engine.sampling import Sampler, check_bias
from edgechat.engine.scheduling.chat_cache import ChatCache
from edgechat.engine.scheduling.preparation import Preparation, explained, fault
from edgechat.engine.scheduling.scheduler import Planned, Scheduler
from edgechat.engine.scheduling.sequence import Sequence
from edgechat.engine.speculative.controller import Controller
from edgechat.engine.speculative.drafters import ModelDrafter, NgramDrafter
from edgechat.engine.speculative.speculation import Speculation, verify
from edgechat.engine.speculative.step_cost import StepCost
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
    Timings,
    Translate,
    Translated,
    Usage,
)

_NO_PREWARMING = CachePolicy(settle=False)
_NO_LOGITS: Logits = np.empty((0, 0), np.float32)


class EngineCore:
    """One model, many requests. Not thread-safe: one thread submits, cancels and steps."""

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
        """`states` None: nothing is kept on disk. controller: says how much is drafted."""
        self.backend = backend
        self.template = template
        self.prompts = Prompts(template, backend.vocabulary)
        self.scheduler = Scheduler(backend)
        interruption = backend.interruption
        self.preparation = Preparation(done=interruption.interrupt if interruption else lambda: None)
        self.chat_cache = ChatCache(
            self.scheduler, backend, self._beginning, self.preparation, cache_policy, states
        )
        self.speculation = Speculation(
            backend,
            self.scheduler,
            controller or Controller(StepCost()),
            model=model_drafter,
            ngram=NgramDrafter() if ngrams else None,
        )
        self.constraints = Constraints(backend.vocabulary)
        self.last_usage: Usage | None = None
        """Of the request that ended last."""
        marks = template.marks
        self._marks = self._control_tokens((marks.open, marks.close, *marks.skip) if marks else ())
        self._call_marks = self._control_tokens(template.calls.marks)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compute, now or as soon as a disk or a grammar is ready."""
        nothing_waits = self.constraints.is_idle and not self.preparation.n_waiting
        return self.scheduler.is_idle and self.chat_cache.is_idle and nothing_waits

    @property
    def is_waiting(self) -> bool:
        """Whether nothing can be done before the disk has answered, or a request is prepared."""
        if not self.scheduler.is_idle:
            return False
        waits = self.preparation.n_waiting or not self.constraints.is_idle
        return self.chat_cache.is_waiting or (self.chat_cache.is_idle and bool(waits))

    def submit(self, request: ChatRequest) -> list[Event]:
        """Prepare a request now, and queue it.

        Raises TemplateError, SwitchUnknown, PromptTooLong, SchemaError or BadRequest.
        """
        return self._queue(*self._prepare(request, time.perf_counter()))

    def begin(self, request: ChatRequest) -> None:
        """Prepare a request beside what runs; a step will queue it, or tell why not."""
        work = partial(self._prepare, request, time.perf_counter())
        self.preparation.begin(request, work, self._prepared)

    def _beginning(self, request: ChatRequest, reply: Message, cells: int) -> list[int]:
        prompt = self.prompts.next(request, reply, cells)
        return prompt.tokens if prompt is not None else []

    def translate(self, command: Translate) -> None:
        """Make tokens of a text, or a text of tokens, beside what runs; a step will tell them."""
        work = partial(translate, self.backend.vocabulary, command)
        self.preparation.begin(ChatRequest(id=command.request_id), work, self._translated)

    def _translated(self, request: ChatRequest, outcome: Translated | EdgechatError) -> list[Event]:
        if isinstance(outcome, EdgechatError):
            return [Failed(request.id, ErrorInfo.of(outcome))]
        return [outcome]

    def _prepare(self, request: ChatRequest, arrived: float) -> tuple[Generation, str | None]:
        """Return a request with its tokens, and the grammar of the reply where it has one."""
        words = self.backend.vocabulary
        check_bias(request.sampling, words.size)
        tools.check(request)
        if request.text is not None:  # there is no chat to keep, and no turn to leave out
            request = msgspec.structs.replace(request, chat=None, overflow="error")
        prompt = self.prompts.of(request, self.scheduler.cells)
        sequence = Generation(
            request=request,
            tokens=prompt.tokens,
            n_prompt=len(prompt.tokens),
            sampler=Sampler(request.sampling),
            reply=reply_of(request, self.template, thinking=prompt.thinking),
            arrived=arrived,
            boundary=prompt.boundary,
            dropped=prompt.dropped,
            logprobs=None if request.logprobs is None else Logprobs(words, request.logprobs),
        )
        return sequence, grammar_of(request, self.template, words, thinking=prompt.thinking)

    def _queue(self, sequence: Sequence, grammar: str | None) -> list[Event]:
        if grammar is not None:
            self.constraints.begin(sequence, grammar)
        else:
            self.chat_cache.begins(sequence)
        return [Dropped(sequence.id, sequence.dropped)] if sequence.dropped else []

    def cancel(self, request_id: str) -> list[Event]:
        """Stop a request; what it has cached stays valid. Unknown ids are ignored."""
        job = self.preparation.give_up(request_id)
        if job is not None and job.sequence is None:
            return [Finished(request_id, "cancelled", Usage(0, 0, 0), Timings(0.0, 0.0, 0.0))]
        sequence = (
            (job.sequence if job else None)
            or self.scheduler.find(request_id)
            or self.chat_cache.give_up(request_id)
            or self.constraints.give_up(request_id)
        )
        return self._finish(sequence, "cancelled") if isinstance(sequence, Generation) else []

    def persist(self, chat: str | None) -> None:
        """Put a chat's state on disk (None: every chat's); `Persisted` comes when that is done."""
        self.chat_cache.persist(chat)

    def forget(self, chat: str) -> None:
        """Keep nothing of a chat, in memory or on disk."""
        self.preparation.forget(chat)
        self.chat_cache.forget(chat)
        self.speculation.forget_chat(chat)

    @property
    def n_running(self) -> int:
        """Requests that are not finished."""
        return sum(one.generates for one in self.scheduler.sequences) + self.n_waiting

    @property
    def n_waiting(self) -> int:
        """Requests that wait for the disk, or for their grammar."""
        return self.chat_cache.n_waiting + self.constraints.n_waiting + self.preparation.n_waiting

    def warm_up(self, *, whole: bool = False) -> None:
        """Compute one token, so that the first request meets no cold pages and the cost is known.

        whole: a full batch before it, so that an accelerator allocates now what it allocates late.
        """
        token = self.backend.vocabulary.tokenize("a", bos=False, special=False)[:1]
        if whole:
            n = min(self.backend.n_batch, self.backend.context)
            self.backend.decode([BatchPart(seq=0, start=0, tokens=token * n, n_logits=1)])
            self.backend.truncate(0, 0)
        seconds = 0.0
        for _ in range(2):  # the first call pages the weights in; the second is what a call costs
            began = time.perf_counter()
            self.backend.decode([BatchPart(seq=0, start=0, tokens=token, n_logits=1)])
            seconds = time.perf_counter() - began
            self.backend.truncate(0, 0)
        self.scheduler.cost.observe(1, 0, seconds)
        self.speculation.warm_up(token, seconds, whole=whole)

    def step(self) -> list[Event]:
        """Compute one batch and return what came of it; nothing if there is nothing to do.

        A fault of ours ends one request, the log has its traceback, and the others go on. It is raised where
        there is none to end.
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
        """Do a step, adding what comes of it to `events`."""
        events += self._taken()
        events += self._constrained()
        events += self.chat_cache.look_around()
        events += self._outgrown()
        planned = self.scheduler.plan()
        events += self._settled()
        if not planned:
            return
        planned = self._drafted(planned)
        try:
            logits = self._decode(planned)
        except CacheFull:
            self._make_room(planned)  # and the next plan is another one
            return
        except Interrupted as early:
            self.scheduler.interrupted(planned, early.n_kept)
            return
        except DecodeFailed as error:
            events += [event for sequence, _ in planned for event in self._fail(sequence, error)]
            return
        except Exception:  # what the backend holds of the batch may be anything
            sequences = [sequence for sequence, _ in planned]
            for sequence in sequences:
                sequence.draft = None
                if sequence is not _youngest(sequences):
                    self.scheduler.preempt(sequence)
            raise
        self._accept(planned, logits, events)
        events += self._settled()

    def _taken(self) -> list[Event]:
        """Go on with what has been prepared."""
        events: list[Event] = []
        for job in self.preparation.ready():
            try:
                events += job.then(job.request, job.outcome)
            except Exception as error:
                failed = explained(error)
                if job.sequence is not None:
                    events += self._fail(job.sequence, failed)
                else:
                    events.append(Failed(job.request.id, ErrorInfo.of(failed)))
        return events

    def _prepared(
        self, request: ChatRequest, outcome: tuple[Generation, str | None] | EdgechatError
    ) -> list[Event]:
        if isinstance(outcome, EdgechatError):
            return [Failed(request.id, ErrorInfo.of(outcome))]
        sequence, grammar = outcome
        if request.chat is None:  # it may have been deleted meanwhile
            sequence.request = msgspec.structs.replace(sequence.request, chat=None)
        return self._queue(sequence, grammar)

    def _constrained(self) -> list[Event]:
        """Queue the requests whose grammar has been compiled."""
        events: list[Event] = []
        for sequence, constraint in self.constraints.ready():
            if isinstance(constraint, EdgechatError):
                events.append(Failed(sequence.id, ErrorInfo.of(constraint)))
                continue
            sequence.sampler.constraint = constraint
            try:
                self.chat_cache.begins(sequence)
            except Exception as error:
                events += self._fail(sequence, fault(error))
        return events

    def _drafted(self, planned: Planned) -> Planned:
        """Return the batch with drafts, where somebody drafts."""
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
            logits = self._computed(planned)
        except Interrupted:
            self.scheduler.cost.wasted(time.perf_counter() - began)
            raise
        if not any(sequence.draft for sequence, _ in planned):  # a few rows cost more each than a chunk's
            self.scheduler.cost.observe(n_streams, n_prompt, time.perf_counter() - began)
        self.scheduler.computed(planned)
        return logits

    def _computed(self, planned: Planned) -> Logits:
        """Return the rows of logits that the batch wants; none where the backend chose the token itself."""
        stream, part = planned[0]
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
        stream.sampler.drawn()
        return _NO_LOGITS

    def _accept(self, planned: Planned, logits: Logits, events: list[Event]) -> None:
        row = n_made = 0
        for sequence, part in planned:
            if not isinstance(sequence, Generation):
                continue
            if not part.n_logits:
                done = part.start + len(part.tokens)
                events.append(Prefill(sequence.id, done, len(sequence.tokens)))
                continue
            try:
                rows = logits[row : row + part.n_logits]
                chosen = self._chosen(sequence, rows)
                if sequence.logprobs is not None:
                    sequence.logprobs.compute(rows, chosen)
                before = sequence.n_generated
                events += self._extend_by(sequence, chosen)
                n_made += max(sequence.n_generated - before, 1)
            except Exception as error:  # others' streams go on
                events += self._fail(sequence, fault(error))
            row += part.n_logits
        try:
            self.speculation.done([sequence for sequence, _ in planned], n_made)
        except Exception as error:
            fault(error)
            self.speculation.stop()

    def _chosen(self, sequence: Generation, rows: Logits) -> list[int]:
        """Return the tokens that come next: one, and before it the drafted ones that stand."""
        draft, sequence.draft = sequence.draft, None
        drawn, sequence.drawn = sequence.drawn, None
        if drawn is not None:
            return [drawn]
        if draft is None:
            return [sequence.sampler.choose(rows[0], sequence.tokens, sequence.said)]
        chosen = verify(sequence.sampler, rows, sequence.tokens, draft, sequence.said)
        self.scheduler.stood(sequence, draft.tokens, len(chosen) - 1)
        self.speculation.verified(sequence, draft, len(chosen) - 1)
        return chosen

    def _extend_by(self, sequence: Generation, tokens: list[int]) -> list[Event]:
        """Add sampled tokens to their sequence, up to the one that ends it or moves its window."""
        events: list[Event] = []
        sequence.has_new(len(tokens), time.perf_counter())
        for token in tokens:
            events += self._extend(sequence, token)
            if sequence.slot is None:
                break
        return events

    def _extend(self, sequence: Generation, token: int) -> list[Event]:
        """Add a sampled token to its sequence; return the text that it completes, and perhaps the end."""
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
        """A reply has filled the context: older turns make room for the rest of it, or it ends here."""
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
        self.preparation.begin(request, work, partial(self._shortened, sequence), sequence)
        return []

    def _shortened(
        self, sequence: Generation, _: ChatRequest, shorter: Prompt | EdgechatError | None
    ) -> list[Event]:
        if shorter is None:
            return self._finish(sequence, "context")
        if isinstance(shorter, EdgechatError):
            return self._fail(sequence, shorter)
        sequence.tokens = shorter.tokens + sequence.tokens[sequence.n_prompt :]
        sequence.n_prompt, sequence.boundary = len(shorter.tokens), shorter.boundary
        sequence.dropped = shorter.dropped
        sequence.n_cached = min(sequence.n_cached or 0, sequence.n_prompt)
        sequence.n_shifted = min(sequence.n_shifted, sequence.n_prompt)
        self.scheduler.resume(sequence)
        self.speculation.forget(sequence)
        return [Dropped(sequence.id, shorter.dropped)]

    def _outgrown(self) -> list[Event]:
        """Shorten or end what no longer fits: the backend has turned out to have fewer cells than it said."""
        events: list[Event] = []
        for sequence in self.scheduler.sequences:
            if len(sequence.tokens) <= self.scheduler.cells:
                continue
            try:
                if isinstance(sequence, Generation):
                    events += self._overflow(sequence)
                else:
                    self.scheduler.remove(sequence, keep_cache=True)
            except Exception as error:
                events += self._fail(sequence, fault(error))
        return events

    def _finish(self, sequence: Generation, reason: FinishReason) -> list[Event]:
        rest = sequence.finish()
        if reason == "stop" and sequence.calls:
            reason = "tools"
        slot = sequence.slot
        if sequence in self.scheduler.sequences:
            self.scheduler.remove(sequence, keep_cache=True)
        self.chat_cache.ended(sequence.request, sequence.message(), slot)
        self.speculation.ended(sequence)
        stats = sequence.tally.stats()
        self.last_usage = usage = sequence.usage()
        return [*rest, Finished(sequence.id, reason, usage, sequence.timings(), stats)]

    def _fail(self, sequence: Sequence, error: EdgechatError) -> list[Event]:
        if sequence in self.scheduler.sequences:
            self.scheduler.remove(sequence, keep_cache=False)
        self.speculation.forget(sequence)
        return [Failed(sequence.id, ErrorInfo.of(error))] if sequence.generates else []

    def _settled(self) -> list[Event]:
        events: list[Event] = []
        for one in [one for one in self.scheduler.running if not one.generates and not one.n_pending]:
            try:
                events += self.chat_cache.settled(one)
            except Exception as error:  # a chat that is not settled is none the worse
                events += self._fail(one, fault(error))
        return events

    def _control_tokens(self, marks: tuple[str, ...]) -> frozenset[int]:
        """Return the control tokens that marks are made of; they print as nothing otherwise."""
        vocabulary = self.backend.vocabulary
        ids = {token for text in marks for token in vocabulary.tokenize(text, bos=False, special=True)}
        return frozenset(token for token in ids if not vocabulary.piece(token))

    def close(self) -> None:
        """Free the template's process and the backend."""
        self.preparation.close()
        self.chat_cache.close()
        self.constraints.close()
        self.template.close()
        self.speculation.close()
        self.backend.close()


def _youngest(sequences: Iterable[Sequence]) -> Sequence:
    """Return who came last: where nobody knows whose fault something is, most often who brought it."""
    return max(sequences, key=lambda one: (not one.generates, one.arrived))
