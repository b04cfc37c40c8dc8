"""Constraints: find which tokens may come next in a reply that follows a grammar, using llguidance.

A grammar is compiled in a thread, but only after a child process has compiled it safely.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import re
import threading
from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgechat.base.errors import EngineError, SchemaError
from edgechat.base.process.child import ChildLost, RestartingChild
from edgechat.engine.backends.base import Vocabulary
from edgechat.engine.kv.prefix_cache import common_prefix
from edgechat.engine.reply.grammar_child import MEMORY_LIMIT, TIME_LIMIT, TOOL_COMMENT, Tokens, limits
from edgechat.engine.types import ErrorInfo

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_REMEMBERED = 256  # grammars whose outcome is cached: programs send the same grammar repeatedly
_STACK = 64 * 2**20  # bytes, for the thread that compiles; the child process has less
_POSITION = re.compile(r"at (\d+)\(\d+\)")
_LONGEST_EXPLANATION = 200  # characters to quote from llguidance's message about a schema
# Without this, llguidance would tokenize forced text itself and forbid the model's other ways to write it.
_OPTIONS = '%llguidance {"no_forcing": true}\n'


class Constraint:
    """A grammar and its state in a reply. Methods raise SchemaError if the grammar proves to be too complex.

    Results depend only on the reply's tokens: the matcher advances over new tokens and rolls back over
    removed tokens, so rejected drafts need no special handling. Checking a token takes 10 us. Computing a
    mask for a vocabulary of 152,000 tokens takes 5 to 300 us, or 2 ms inside a string with a pattern or a
    length limit.
    """

    def __init__(self, matcher: LLMatcher, n_vocab: int, ends: Seq[int]) -> None:
        """ends: tokens that end a reply."""
        self._matcher = matcher
        self._n_vocab = n_vocab
        self._ends = frozenset(ends)
        self._consumed: list[int] = []
        self._bits = np.zeros((n_vocab + 32) // 32, np.uint32)  # one more token: see `_new_tokenizer`

    def mask(self, reply_tokens: Seq[int]) -> npt.NDArray[np.bool_]:
        """Return a mask [n_vocab] of the tokens that may follow. Ignores end tokens in `reply_tokens`."""
        self._advance_to(reply_tokens)
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        bits = np.unpackbits(self._bits.view(np.uint8), count=self._n_vocab, bitorder="little")
        return bits.view(np.bool_)

    def allows(self, reply_tokens: Seq[int], tokens: Seq[int]) -> int:
        """Return how many of `tokens`, in order, may follow the reply so far."""
        self._advance_to(reply_tokens)
        n_allowed = int(self._matcher.validate_tokens(list(tokens)))
        self._check()
        return n_allowed

    def is_complete(self, reply_tokens: Seq[int]) -> bool:
        """Return True if no token may follow."""
        self._advance_to(reply_tokens)
        return bool(self._matcher.is_stopped())

    def _advance_to(self, reply_tokens: Seq[int]) -> None:
        n = common_prefix(self._consumed, reply_tokens)
        if n < len(self._consumed):
            self._matcher.rollback(len(self._consumed) - n)
            del self._consumed[n:]
        new_tokens = list(itertools.takewhile(lambda token: token not in self._ends, reply_tokens[n:]))
        if new_tokens:
            self._matcher.consume_tokens(new_tokens)
            self._consumed += new_tokens
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise grammar_error(self._matcher.get_error())


class Constraints:
    """Compiles constraints for a vocabulary in background threads.

    New grammars are tried in a child process first, and are compiled one after another. Grammars that have
    been compiled before do not have to wait for new ones.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._shared_tokenizer: LLTokenizer | None = None
        self._child = RestartingChild("grammar", "grammars", seconds=TIME_LIMIT, memory=MEMORY_LIMIT)
        self._valid: dict[bytes, None] = {}
        self._errors: dict[bytes, ErrorInfo] = {}
        self._lock = threading.Lock()
        """Held while the tokenizer is being created."""
        self._closed = False
        self._executors: dict[str, ThreadPoolExecutor] = {}

    def prepare(self) -> None:
        """Create the tokenizer that all constraints share. Does nothing without llguidance.

        This holds the GIL for half of the time it takes, up to 0.7 s, which blocks all other threads.
        """
        if not _is_missing():
            wait([self._executor("grammars").submit(self._tokenizer)])  # errors recur with the first request

    def of(self, grammar: str) -> Future[Constraint]:
        """Start compiling a grammar. The future may raise SchemaError.

        Raises EngineError if llguidance is not installed.
        """
        if _is_missing():
            raise EngineError(
                "Structured output requires llguidance, which is not installed.",
                hint='pip install "edgechat[server]"',
            )
        grammar = _OPTIONS + grammar
        digest = hashlib.blake2b(grammar.encode()).digest()
        problem = self._errors.get(digest)  # looked up only once: another thread removes old entries
        if problem is not None:
            refusal: Future[Constraint] = Future()
            refusal.set_exception(problem.error())
            return refusal
        if digest in self._valid:
            return self._executor("grammars").submit(self._compile, grammar)
        return self._executor("new grammars").submit(self._compile_new, grammar, digest)

    def _executor(self, name: str) -> ThreadPoolExecutor:
        if name not in self._executors:
            self._executors[name] = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
            before = threading.stack_size(_STACK)
            try:  # the executor starts its thread when it gets its first task
                self._executors[name].submit(lambda: None).result()
            finally:
                threading.stack_size(before)
        return self._executors[name]

    def _compile_new(self, grammar: str, digest: bytes) -> Constraint:
        if digest in self._errors:  # added since this task was queued
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
        # Each request gets a new matcher: copies share a lexer, whose memory grows with the text of all
        # copies.
        import llguidance

        tokenizer = self._tokenizer()
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits())
        if matcher.is_error():
            raise grammar_error(matcher.get_error(), grammar)
        return Constraint(matcher, self._vocabulary.size, tokenizer.eos_tokens)

    def _compile_in_child(self, grammar: str) -> None:
        """Compile a grammar in the child process, where hangs and crashes do no harm. Raises SchemaError."""
        try:
            if self._closed:
                raise EngineError("The engine is shutting down.")
            problem = self._child.ask(grammar.encode())
        except ChildLost as lost:
            if self._closed:
                raise EngineError("The engine is shutting down.") from lost
            raise SchemaError(
                "The schema is too complex: compiling it exceeds the time or memory limit.",
                hint="Simplify it: use fewer references, and do not require several patterns to "
                "match the same text.",
            ) from lost
        if problem:
            raise grammar_error(problem.decode("utf-8", "replace"), grammar)

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
            # A token that ends a reply is never part of the text, even if it has text of its own.
            text = b"" if ends[-1:] == [token] else vocabulary.piece(token)
            pieces.append(text or b"\xff<[%d]>" % token)
        pieces.append(b"\xff<end>")  # for vocabularies without an end token
        ends = ends or [vocabulary.size]
        # Slices would save a millisecond per token in some strings, but cost 80 MB and a second.
        wrapped: Any = Tokens(pieces, ends[0])
        return llguidance.LLTokenizer(wrapped, eos_token=ends, slices=[])

    def close(self) -> None:
        """Stop the process and the threads that use the vocabulary."""
        self._closed = True
        self._child.close()
        for executor in self._executors.values():
            executor.shutdown(cancel_futures=True)
        self._child.close()  # a thread may have restarted it


def _remember(known: dict[bytes, Any], name: bytes, value: object) -> None:
    known[name] = value
    if len(known) > _REMEMBERED:
        del known[next(iter(known))]


def _is_missing() -> bool:
    return importlib.util.find_spec("llguidance") is None


def grammar_error(why: str, grammar: str = "") -> SchemaError:
    """Return the error for a grammar that cannot be used. why: llguidance's message."""
    position = _POSITION.match(why)
    tool = _tool_at(grammar, int(position[1])) if position else ""
    return SchemaError(
        f"{f'Calls to the tool {tool}' if tool else 'The answer'} cannot be made to follow "
        f"{'its' if tool else 'this'} schema: {_explain(why)}.",
        hint="Simplify the schema: use fewer optional properties, no overlapping patterns, and smaller "
        "limits.",
    )


def _tool_at(grammar: str, line: int) -> str:
    """Return the name of the tool that a line of a grammar belongs to, or '' if there is none."""
    before = grammar.splitlines()[:line]
    marks = (text.removeprefix(TOOL_COMMENT) for text in reversed(before) if text.startswith(TOOL_COMMENT))
    return next(marks, "")


def _explain(why: str) -> str:
    line = why.partition("\n")[0]
    explanation = line.partition("failed to compile JSON schema: ")[2] or line
    if keys := re.match(r"Unimplemented keys: \[(.*)\]", explanation):
        explanation = f"unsupported keywords: {keys[1].replace(chr(34), '')}"
    elif explanation.startswith("regex parse error"):
        error = re.search(r"^error: (.*)", why, re.MULTILINE)
        explanation = f"a pattern is not supported: {error[1] if error else 'it is not a regular expression'}"
    elif explanation.startswith("oneOf constraints"):
        explanation = "a value could match several schemas of oneOf; use anyOf if they may overlap"
    return explanation[:_LONGEST_EXPLANATION].rstrip(".")
