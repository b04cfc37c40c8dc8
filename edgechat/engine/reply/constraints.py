"""The constraints of an engine's requests: compiled in a thread, after a process has lived through it."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from edgechat.base.errors import EdgechatError, EngineError, SchemaError
from edgechat.base.process.child import Child, ChildLost, ChildNeverReady
from edgechat.engine.backends.base import Vocabulary
from edgechat.engine.reply.constraint import Constraint
from edgechat.engine.reply.grammar import grammar_error
from edgechat.engine.reply.grammar_child import MEMORY_LIMIT, TIME_LIMIT, Tokens, limits
from edgechat.engine.scheduling.preparation import fault
from edgechat.engine.scheduling.sequence import Sequence
from edgechat.engine.types import ErrorInfo

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_REMEMBERED = 256
"""Grammars of which it is known what becomes of them: programs ask for the same one again and again."""
_STACK = 64 * 2**20
"""Bytes, of the thread that compiles what a process with less has compiled."""
# Else a forced text would be tokenized by llguidance, which for the model is one way of many.
_OPTIONS = '%llguidance {"no_forcing": true}\n'


class Constraints:
    """Makes the constraints of one vocabulary, in threads of its own: others' streams go on.

    Grammars that are new wait for each other, as a process tries them out; what is known waits for none.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._shared_tokenizer: LLTokenizer | None = None
        self._child: Child | None = None
        self._valid: dict[bytes, None] = {}
        self._errors: dict[bytes, ErrorInfo] = {}
        self._lock = threading.Lock()
        """Held by a thread that makes the tokenizer, or begins or ends the process."""
        self._closed = False
        self._executors: dict[str, ThreadPoolExecutor] = {}
        self._waiting: list[tuple[Sequence, Future[Constraint]]] = []

    def prepare(self) -> None:
        """Make ready now what all constraints share; does nothing where they cannot be had.

        Python stands still for half of it, up to 0.7 s, whatever thread it is done in.
        """
        if not _is_missing():
            wait([self._executor("grammars").submit(self._tokenizer)])  # who wants one hears what went wrong

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for a constraint."""
        return not self._waiting

    @property
    def n_waiting(self) -> int:
        """Requests that wait for one."""
        return len(self._waiting)

    def begin(self, sequence: Sequence, grammar: str) -> None:
        """Have a sequence wait for the constraint of its grammar. Raises EngineError; see `of`."""
        self._waiting.append((sequence, self.of(grammar)))

    def ready(self) -> list[tuple[Sequence, Constraint | EdgechatError]]:
        """Return who need not wait any more, with the constraint, or with why there is none."""
        done = [pair for pair in self._waiting if pair[1].done()]
        self._waiting = [pair for pair in self._waiting if pair not in done]
        return [(sequence, _result(future)) for sequence, future in done]

    def give_up(self, request_id: str) -> Sequence | None:
        """Return the sequence of a request that waits for its grammar, and do not wait for it."""
        pair = next((pair for pair in self._waiting if pair[0].id == request_id), None)
        if pair is None:
            return None
        self._waiting.remove(pair)
        pair[1].cancel()
        return pair[0]

    def of(self, grammar: str) -> Future[Constraint]:
        """Begin to make the constraint of a grammar; the future may raise SchemaError.

        Raises EngineError where llguidance is not installed.
        """
        if _is_missing():
            raise EngineError(
                "Structured output requires llguidance, which is not installed.",
                hint='pip install "edgechat[server]"',
            )
        grammar = _OPTIONS + grammar
        digest = hashlib.blake2b(grammar.encode()).digest()
        error = self._errors.get(digest)
        if error is not None:
            refusal: Future[Constraint] = Future()
            refusal.set_exception(error.error())
            return refusal
        if digest in self._valid:
            return self._executor("grammars").submit(self._compile, grammar)
        return self._executor("new grammars").submit(self._compile_new, grammar, digest)

    def _executor(self, name: str) -> ThreadPoolExecutor:
        executor = self._executors.get(name)
        if executor is None:
            executor = self._executors[name] = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
            before = threading.stack_size(_STACK)
            try:  # threads are started with the first work
                executor.submit(lambda: None).result()
            finally:
                threading.stack_size(before)
        return executor

    def _compile_new(self, grammar: str, digest: bytes) -> Constraint:
        if digest in self._errors:  # since it was asked for
            raise self._errors[digest].error()
        try:
            if digest not in self._valid:
                self._compile_in_child(grammar)
            constraint = self._compile(grammar)
        except SchemaError as error:
            _remember(self._errors, digest, ErrorInfo.of(error))
            raise
        _remember(self._valid, digest, None)
        return constraint

    def _compile(self, grammar: str) -> Constraint:
        # Each request has its own: copies share one lexer, and what it may remember of their texts.
        import llguidance

        tokenizer = self._tokenizer()
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits())
        if matcher.is_error():
            raise grammar_error(matcher.get_error(), grammar)
        return Constraint(matcher, self._vocabulary.size, tokenizer.eos_tokens)

    def _compile_in_child(self, grammar: str) -> None:
        """Compile it where that may take too long, or end in a crash. Raises SchemaError."""
        try:
            problem = self._grammar_process().ask(grammar.encode(), seconds=TIME_LIMIT, memory=MEMORY_LIMIT)
        except ChildNeverReady as lost:
            raise EngineError(
                f"The process for grammars did not start: it {lost}.",
                hint="Send the request again. If it fails again, please report this error, with the "
                "engine's log.",
            ) from lost
        except ChildLost as lost:
            if self._closed:
                raise EngineError("The engine is shutting down.") from lost
            raise SchemaError(
                "The schema is too complex: compiling it exceeds the limit of time or memory.",
                hint="Simplify it: use fewer references, and no patterns that must match at the same time.",
            ) from lost
        if problem:
            raise grammar_error(problem.decode("utf-8", "replace"), grammar)

    def _grammar_process(self) -> Child:
        with self._lock:
            if self._closed:
                raise EngineError("The engine is shutting down.")
            if self._child is None or not self._child.alive:
                self._child = Child("grammar", log=sys.stderr.fileno())
            return self._child

    def _tokenizer(self) -> LLTokenizer:
        with self._lock:
            if self._shared_tokenizer is None:
                self._shared_tokenizer = self._new_tokenizer()
            return self._shared_tokenizer

    def _new_tokenizer(self) -> LLTokenizer:
        import llguidance

        vocabulary = self._vocabulary
        pieces, ends = [], []
        for token in range(vocabulary.size):
            if vocabulary.is_end(token):
                ends.append(token)
            # What ends a reply is never part of its text, even where it reads as one.
            text = b"" if ends[-1:] == [token] else vocabulary.piece(token)
            pieces.append(text or b"\xff<[%d]>" % token)
        pieces.append(b"\xff<end>")  # for vocabularies that have none
        ends = ends or [vocabulary.size]
        # Slices would save a millisecond a token in some strings, for 80 MB and a second.
        wrapped: Any = Tokens(pieces, ends[0])
        return llguidance.LLTokenizer(wrapped, eos_token=ends, slices=[])

    def close(self) -> None:
        """End the process and the threads, which must not look at the vocabulary any more."""
        with self._lock:
            self._closed = True
            if self._child is not None:
                self._child.close()
        for executor in self._executors.values():
            executor.shutdown(cancel_futures=True)


def _remember(known: dict[bytes, Any], name: bytes, value: object) -> None:
    known[name] = value
    if len(known) > _REMEMBERED:
        del known[next(iter(known))]


def _is_missing() -> bool:
    return importlib.util.find_spec("llguidance") is None


def _result(future: Future[Constraint]) -> Constraint | EdgechatError:
    try:
        return future.result()
    except EdgechatError as error:
        return error
    except Exception as error:  # others' streams go on
        return fault(error)
