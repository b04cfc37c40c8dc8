"""The engine: submit requests, then step(): plan a batch, decode it, accept the results."""

from __future__ import annotations

import time

from edgechat.engine.backends.base import Backend, CacheFull, Logits, Part
from edgechat.engine.reply import Reply, Where
from edgechat.engine.sampling import Sampler
from edgechat.engine.scheduler import Planned, Scheduler
from edgechat.engine.sequence import Sequence
from edgechat.engine.template import TEXT_LIMIT, ChatTemplate
from edgechat.engine.types import (
    ChatRequest,
    Delta,
    ErrorInfo,
    Event,
    Failed,
    Finished,
    FinishReason,
    Prefill,
)
from edgechat.errors import DecodeFailed, EdgechatError, PromptTooLong, TemplateError

_LONGEST_PIECE = 512
"""Bytes; no vocabulary has a token as long, so a longer text has more tokens than its bytes over this."""


class Engine:
    """One model, many requests. Not thread-safe: one thread submits, cancels and steps."""

    def __init__(self, backend: Backend, template: ChatTemplate) -> None:
        self.backend = backend
        self.template = template
        self.scheduler = Scheduler(backend)
        self._marks = self._tokens_of_marks()

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compute."""
        return self.scheduler.is_idle

    def submit(self, request: ChatRequest) -> None:
        """Queue a request. Raises TemplateError, SwitchUnknown or PromptTooLong."""
        arrived = time.perf_counter()
        size = sum(len(message.content.encode("utf-8", "replace")) for message in request.messages)
        if size > min(_LONGEST_PIECE * self.scheduler.cells, TEXT_LIMIT):
            # Refused before it is rendered: others' streams wait while this thread works on it.
            raise _too_long(f"more than {size // _LONGEST_PIECE}", self.scheduler.cells)
        prompt = self.template.render(request.messages, think=request.think, date=request.date)
        tokens = self.backend.vocabulary.tokenize(prompt, bos=True, special=True)
        if not tokens:
            raise TemplateError(
                "The model's chat template renders these messages as nothing at all.",
                hint="The file may be damaged: use a copy of the model from another source.",
            )
        if len(tokens) >= self.scheduler.cells:
            raise _too_long(str(len(tokens)), self.scheduler.cells)
        marks = self.template.marks
        opened = marks is not None and prompt.rstrip().endswith(marks.open)
        self.scheduler.waiting.append(
            Sequence(
                request=request,
                tokens=tokens,
                n_prompt=len(tokens),
                sampler=Sampler(request.sampling),
                reply=Reply(request.stop + self.template.stop, marks, thinking=opened),
                arrived=arrived,
            )
        )

    def cancel(self, request_id: str) -> list[Event]:
        """Stop a request; what it has cached stays valid. An unknown one is none of our business."""
        sequence = self.scheduler.find(request_id)
        return self._finish(sequence, "cancelled") if sequence else []

    @property
    def n_running(self) -> int:
        """Requests that are not finished."""
        return len(self.scheduler.running) + len(self.scheduler.waiting)

    def warm_up(self, *, whole: bool = False) -> None:
        """Compute one token, so that the first request meets no cold pages and the cost is known.

        whole: a full batch before it, so that an accelerator allocates now what it allocates late.
        """
        token = self.backend.vocabulary.tokenize("a", bos=False, special=False)[:1]
        if whole:
            n = min(self.backend.n_batch, self.backend.context)
            self.backend.decode([Part(seq=0, start=0, tokens=token * n, n_logits=1)])
            self.backend.truncate(0, 0)
        seconds = 0.0
        for _ in range(2):  # the first call pages the weights in; the second is what a call costs
            began = time.perf_counter()
            self.backend.decode([Part(seq=0, start=0, tokens=token, n_logits=1)])
            seconds = time.perf_counter() - began
            self.backend.truncate(0, 0)
        self.scheduler.cost.observe(1, seconds)

    def step(self) -> list[Event]:
        """Compute one batch and return what came of it; nothing if there is nothing to do."""
        planned = self.scheduler.plan()
        if not planned:
            return []
        try:
            logits = self._decode(planned)
        except CacheFull:
            self.scheduler.lower_cells(planned)  # the next plan makes room
            return []
        except DecodeFailed as error:
            return [event for sequence, _ in planned for event in self._fail(sequence, error)]
        return self._accept(planned, logits)

    def _decode(self, planned: Planned) -> Logits:
        began = time.perf_counter()
        for sequence, _ in planned:
            sequence.started = sequence.started or began
        logits = self.backend.decode([part for _, part in planned])
        n_tokens = sum(len(part.tokens) for _, part in planned)
        self.scheduler.cost.observe(n_tokens, time.perf_counter() - began)
        for sequence, part in planned:
            assert sequence.slot is not None
            sequence.slot.tokens.extend(part.tokens)
        return logits

    def _accept(self, planned: Planned, logits: Logits) -> list[Event]:
        events: list[Event] = []
        row = 0
        for sequence, part in planned:
            if not part.n_logits:
                events.append(Prefill(sequence.id, part.start + len(part.tokens), len(sequence.tokens)))
                continue
            try:
                token = sequence.sampler.choose(logits[row], sequence.tokens)
                events += self._extend(sequence, token)
            except DecodeFailed as error:
                events += self._fail(sequence, error)
            row += part.n_logits
        return events

    def _extend(self, sequence: Sequence, token: int) -> list[Event]:
        """Add a sampled token to its sequence; return the text that it completes, and perhaps the end."""
        sequence.last_token = time.perf_counter()
        sequence.first_token = sequence.first_token or sequence.last_token
        if self.backend.vocabulary.is_end(token):
            return self._finish(sequence, "stop")
        sequence.tokens.append(token)
        reply = sequence.reply
        special = token in self._marks and reply.where is not Where.ANSWER
        shown = reply.feed(self.backend.vocabulary.piece(token, special=special))
        events: list[Event] = [
            Delta(sequence.id, text, thinking, sequence.n_generated) for text, thinking in shown
        ]
        if reply.stopped:
            return events + self._finish(sequence, "stop")
        limit = sequence.request.max_tokens
        if limit is not None and sequence.n_generated >= limit:
            return events + self._finish(sequence, "length")
        if len(sequence.tokens) >= self.scheduler.cells:
            return events + self._finish(sequence, "context")
        return events

    def _finish(self, sequence: Sequence, reason: FinishReason) -> list[Event]:
        rest = sequence.reply.finish()
        self.scheduler.remove(sequence, keep_cache=True)
        return [
            *(Delta(sequence.id, text, thinking, sequence.n_generated) for text, thinking in rest),
            Finished(sequence.id, reason, sequence.usage(), sequence.timings()),
        ]

    def _fail(self, sequence: Sequence, error: EdgechatError) -> list[Event]:
        self.scheduler.remove(sequence, keep_cache=False)
        return [Failed(sequence.id, ErrorInfo.of(error))]

    def _tokens_of_marks(self) -> frozenset[int]:
        """Return the control tokens that marks of thinking are made of; they print as nothing otherwise."""
        marks = self.template.marks
        if marks is None:
            return frozenset()
        vocabulary = self.backend.vocabulary
        texts = (marks.open, marks.close, *marks.skip)
        ids = {token for text in texts for token in vocabulary.tokenize(text, bos=False, special=True)}
        return frozenset(token for token in ids if not vocabulary.piece(token))

    def close(self) -> None:
        """Free the template's process and the backend."""
        self.template.close()
        self.backend.close()


def _too_long(tokens: str, cells: int) -> PromptTooLong:
    return PromptTooLong(
        f"The conversation has {tokens} tokens, and the context holds {cells}.",
        hint="Shorten it or start a new chat; --ctx, or context in settings.toml, asks for a longer context.",
    )
