"""Which drafted tokens stand: exact, so that speculation changes the speed and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from edgechat.engine.backends.base import Logits
from edgechat.engine.sampling.sampler import Sampler
from edgechat.engine.speculative.draft import Draft


def verify(
    sampler: Sampler, rows: Logits, tokens: Sequence[int], draft: Draft, said: Sequence[int] = ()
) -> list[int]:
    """Return the tokens that come next: the drafted ones that stand, and one of the target's own.

    rows: logits [k + 1, n_vocab] after the last of `tokens` and after each drafted one. said: those of the
    tokens that are the reply's, where it follows a grammar. Every token is chosen with the ones before it in
    sight, so penalties count drafted tokens too, and grammars go on from them. Where it was drawn from a
    distribution it is judged by rejection sampling; a plain guess stands if the sampler chooses the same.
    Raises DecodeFailed or SchemaError.
    """
    window = max(sampler.sampling.penalty_window, 0)
    recent, so_far = list(tokens[-window:]) if window else [], list(said)
    found: list[int] = []
    for at, token in enumerate(draft.tokens):
        if draft.distributions is None:
            chosen = sampler.choose(rows[at], recent, so_far)
        else:
            chosen = sampler.judge(rows[at], recent, token, draft.distributions[at], so_far)
        found.append(chosen)
        recent.append(chosen)
        so_far.append(chosen)
        if chosen != token:
            return found
    found.append(sampler.choose(rows[len(draft.tokens)], recent, so_far))
    return found
