"""The logprobs of an answer's tokens, as OpenAI's endpoints tell them."""

from __future__ import annotations

import msgspec

from edgechat.engine.types import TokenLogprobs


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token and its logprob, the natural logarithm of its probability."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob, frozen=True, kw_only=True):
    """The logprob of a token of the answer, and of its alternatives."""

    top_logprobs: list[TopLogprob]


def logprob_of(chance: TokenLogprobs) -> TokenLogprob:
    """Return the logprobs of a token as clients get them."""
    others = [_chance(token, logprob) for token, logprob in chance.others]
    own = _chance(chance.token, chance.logprob)
    return TokenLogprob(token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=others)


def _chance(token: bytes, logprob: float) -> TopLogprob:
    return TopLogprob(token=token.decode("utf-8", "replace"), logprob=logprob, bytes=list(token))
