"""How busy a server is, according to its /metrics endpoint (in Prometheus text format)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import msgspec

from edgechat.base.errors import EdgechatError
from edgechat.models.remote.client import RemoteClient
from edgechat.settings import RemoteKind

_SECONDS = 2.0
_NAMES: Mapping[RemoteKind, tuple[str, str, str]] = {
    "vllm": ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
    "sglang": ("sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage"),
    "llama-server": ("llamacpp:requests_processing", "llamacpp:requests_deferred", ""),
    "tgi": ("tgi_batch_current_size", "tgi_queue_size", ""),
    "edgechat": ("edgechat_running", "edgechat_waiting", ""),
}
"""Gauges for running requests, waiting requests, and the fraction of the KV cache in use, or '' if there is
none.
"""


class ServerLoad(msgspec.Struct, frozen=True):
    """How busy a server is, counting all clients' requests. Values that are not reported are None."""

    running: int | None = None
    waiting: int | None = None
    cache_share: float | None = None


async def load_of(client: RemoteClient, kind: RemoteKind) -> ServerLoad | None:
    """Return how busy a server is, or None if it does not report that."""
    if kind not in _NAMES:
        return None
    try:
        text = await client.text("/metrics", seconds=_SECONDS)
    except EdgechatError:
        return None
    running, waiting, share = (_sum(text, name) for name in _NAMES[kind])
    if running is None and waiting is None and share is None:
        return None
    return ServerLoad(
        None if running is None else int(running),
        None if waiting is None else int(waiting),
        share if share is not None and share <= 1 else None,
    )


def _sum(text: str, name: str) -> float | None:
    """Return the value of a gauge, summed over all labels, or None if it is missing."""
    if not name:
        return None
    found = re.findall(rf"^{re.escape(name)}(?:\{{[^\n]*\}})? ([0-9.eE+-]{{1,32}})\s*$", text, re.MULTILINE)
    total = 0.0
    for value in found:
        try:
            total += float(value)
        except ValueError:
            return None
    return total if found and math.isfinite(total) and 0 <= total < 1e9 else None
