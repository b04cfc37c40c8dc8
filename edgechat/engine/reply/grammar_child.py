"""Child process that tries out grammars: a hostile schema may take hours, or exhaust the memory or the stack.

llguidance limits most of its work, but not all of it: patterns that must match at the same time can keep it
busy forever, and a long chain of references overflows the stack. If a grammar compiles here in time, the
worker compiles it again.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from edgechat.base.process import child, spawn

if TYPE_CHECKING:
    from llguidance import LLTokenizer

TIME_LIMIT = 3.0
"""Time limit for one grammar, in seconds. Most grammars take milliseconds."""
MEMORY_LIMIT = 768 * 2**20
"""Memory limit for the process, in bytes. Normal grammars take 30 to 80 MB."""
TOOL_COMMENT = "// of the tool "
"""The comment before the rules for a tool's calls. Error messages get the tool's name from it."""
_CONTROL_TOKEN = re.compile(r"<\[\d+\]>")
_END, _CONTROL = 256, 257  # in a vocabulary of bytes; a single control token stands for all


def limits() -> Any:
    """Return llguidance's limits for one grammar: 70 ms to compile, 15 ms per token, 50 MB.

    Strings with a length limit take the most memory, and run out of it after 11,000 characters.
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
    """A vocabulary in the form that llguidance expects."""

    bos_token_id = None
    is_tokenizer_wrapper = True

    def __init__(self, tokens: list[bytes], end: int) -> None:
        """tokens: the bytes of each token. Control tokens start with 0xff, which does not occur in text."""
        self.tokens = tokens
        self.eos_token_id = end
        self.special_token_ids: list[int] = []

    def __call__(self, text: bytes | str) -> list[int]:
        """Raise NotImplementedError: with edgechat's grammars, llguidance never tokenizes text."""
        raise NotImplementedError


def main() -> None:
    """Answer each grammar with its error, or with nothing if it is valid, until the parent exits."""
    pipes = spawn.adopt_pipe()
    child.limit_memory(MEMORY_LIMIT)
    child.serve(pipes, _answer, seconds=int(TIME_LIMIT) + 2)


def _answer(question: bytes) -> bytes:
    import llguidance

    grammar = _CONTROL_TOKEN.sub(f"<[{_CONTROL}]>", question.decode())
    matcher = llguidance.LLMatcher(_tokenizer(), grammar, log_level=0, limits=limits())
    if not matcher.is_error():
        matcher.try_consume_tokens([ord("{")])
        matcher.compute_bitmask()  # some grammars prove to be too complex only at this point
    return matcher.get_error().encode()


@cache
def _tokenizer() -> LLTokenizer:
    import llguidance

    tokens = [*(bytes([byte]) for byte in range(256)), b"\xff<end>", b"\xff<control>"]
    wrapped: Any = Tokens(tokens, _END)
    return llguidance.LLTokenizer(wrapped, eos_token=_END, slices=[])
