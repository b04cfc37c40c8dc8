"""Messages between front end and worker: typed values, without pickle or native objects.

front end                                worker
Load(plan, cache_policy)          ->
<-     Loading(progress) ... Loaded(model) | Failed
Generate(request)                 ->
<-     Dropped(turns)? Prefill(done, total) ...
<-     Delta(text) | ToolCallBegun(call) | ToolCallArguments(text) ...
<-     Finished | Failed
Embed(request_id, texts)          ->
<-     Embedded(vectors) | Failed
Translate(request_id, what)       ->
<-     Translated(tokens, text) | Failed
Cancel(request_id)                ->
<-     Finished(reason="cancelled")
<-     Prewarmed(tokens)                 some time later
Persist(chat)                     ->
<-     Persisted(chat)                   saved, or not worthwhile
Forget(chat)                      ->
Inspect(chat)                     ->
<-     Inspected(snapshot)
end of file                       ->     the worker exits

Events are sent in lists, one list per step of the engine.
"""

from __future__ import annotations

import msgspec

from edgechat.engine.kv.snapshot import Snapshot
from edgechat.engine.types import CachePolicy, ChatRequest, Embed, Event, ModelInfo, Translate
from edgechat.planner.plan import LoadPlan


class Load(msgspec.Struct, frozen=True, tag=True):
    """Load the model. This is the first command and is only sent once."""

    plan: LoadPlan
    cache_policy: CachePolicy = CachePolicy()


class Generate(msgspec.Struct, frozen=True, tag=True):
    """Answer a request."""

    request: ChatRequest


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Cancel a request within one decode call. Its cache stays valid."""

    request_id: str


class Persist(msgspec.Struct, frozen=True, tag=True):
    """Save a closed chat's state to disk if that is worthwhile; None saves every chat's."""

    chat: str | None = None


class Forget(msgspec.Struct, frozen=True, tag=True):
    """Delete a chat's cached state from memory and disk."""

    chat: str


class Inspect(msgspec.Struct, frozen=True, tag=True):
    """Take a snapshot between two steps that shows a chat's cache, by default the last answered chat's."""

    chat: str | None = None


Command = Load | Generate | Cancel | Persist | Forget | Inspect | Embed | Translate


class Loading(msgspec.Struct, frozen=True, tag=True):
    """Progress of loading the model, from 0 to 1."""

    progress: float


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The model is ready."""

    model: ModelInfo


class Inspected(msgspec.Struct, frozen=True, tag=True):
    """Answer to Inspect. The snapshot is None after an internal error."""

    snapshot: Snapshot | None


WorkerEvent = Event | Loading | Loaded | Inspected
