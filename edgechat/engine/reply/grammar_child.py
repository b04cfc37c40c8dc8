"""The child process that compiles a grammar first: a hostile schema takes hours, all memory, or the stack.

llguidance bounds most of its work, not all of it: patterns that must all match at once are computed without
end, and a long chain of references overflows the stack. What is compiled here in time is compiled again by
the worker.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from edgechat.base.process import child, spawn

if TYPE_CHECKING:
    from llguidance import LLTokenizer

TIME_LIMIT = 3.0
"""Seconds for one grammar; most take milliseconds."""
MEMORY_LIMIT = 768 * 2**20
"""Bytes that the process may take; a normal grammar takes 30 to 80 MB."""
TOOL_COMMENT = "// of the tool "
"""A comment line before the rules of a tool's calls, by which errors find its name."""
_CONTROL_TOKEN = re.compile(r"<\[\d+\]>")
_END, _CONTROL = 256, 257  # of a vocabulary of bytes; one control token stands for all


def limits() -> Any:
    """Return what one grammar may take of llguidance: 70 ms to be compiled, 15 ms a token, 50 MB.

    The memory goes to limited strings: it is used up by 11,000 characters of one with a longer maxLength.
    """
    import llguidance

    return llguidance.LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=100_000,
        max_grammar_size=500_000,
        precompute_large_lexemes=False,
        verbose_errors=False,
    )


class Tokens:
    """A vocabulary in the form that llguidance takes."""

    bos_token_id = None
    is_tokenizer_wrapper = True

    def __init__(self, tokens: list[bytes], end: int) -> None:
        """tokens: their bytes; a control token's begin with 0xff, which no text has."""
        self.tokens = tokens
        self.eos_token_id = end
        self.special_token_ids: list[int] = []

    def __call__(self, text: bytes | str) -> list[int]:
        """Never called: edgechat's grammars do not let llguidance tokenize text."""
        raise NotImplementedError


def main() -> None:
    """Answer each grammar with its error, or nothing, until the parent ends."""
    pipes = spawn.adopt_pipe()
    child.limit_memory(MEMORY_LIMIT)
    child.serve(pipes, _answer, seconds=int(TIME_LIMIT) + 2)


def _answer(question: bytes) -> bytes:
    import llguidance

    grammar = _CONTROL_TOKEN.sub(f"<[{_CONTROL}]>", question.decode())
    matcher = llguidance.LLMatcher(_tokenizer(), grammar, log_level=0, limits=limits())
    if not matcher.is_error():
        matcher.try_consume_tokens([ord("{")])
        matcher.compute_bitmask()  # some turn out too complex only here
    return matcher.get_error().encode()


@cache
def _tokenizer() -> LLTokenizer:
    import llguidance

    tokens = [*(bytes([byte]) for byte in range(256)), b"\xff<end>", b"\xff<control>"]
    wrapped: Any = Tokens(tokens, _END)
    return llguidance.LLTokenizer(wrapped, eos_token=_END, slices=[])
