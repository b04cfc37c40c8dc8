"""The messages between front end and worker: typed, without pickle or native objects.

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
<-     Persisted(chat)                   its state is saved, or need not be
Forget(chat)                      ->
Inspect(chat)                     ->
<-     Inspected(snapshot)
end of file                       ->     the worker ends

Events come in lists, those of one step of the engine together.
"""

from __future__ import annotations

import msgspec

from edgechat.engine.kv.snapshot import Snapshot
from edgechat.engine.types import CachePolicy, ChatRequest, Embed, Event, ModelInfo, Translate
from edgechat.planner.plan import LoadPlan


class Load(msgspec.Struct, frozen=True, tag=True):
    """Load the model; the first message of a worker's life, sent once."""

    plan: LoadPlan
    cache_policy: CachePolicy = CachePolicy()


class Generate(msgspec.Struct, frozen=True, tag=True):
    """Answer a request."""

    request: ChatRequest


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Stop a request within one decode call; its cache stays valid."""

    request_id: str


class Persist(msgspec.Struct, frozen=True, tag=True):
    """Save the state of a chat that is no longer open (None: of all) to disk, if that is worth it."""

    chat: str | None = None


class Forget(msgspec.Struct, frozen=True, tag=True):
    """Delete what is kept of a chat, in memory and on disk."""

    chat: str


class Inspect(msgspec.Struct, frozen=True, tag=True):
    """Take a snapshot between two steps, with `chat` (None: the one answered last) in view."""

    chat: str | None = None


Command = Load | Generate | Cancel | Persist | Forget | Inspect | Embed | Translate


class Loading(msgspec.Struct, frozen=True, tag=True):
    """The progress of a load, from 0 to 1."""

    progress: float


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The model is ready."""

    model: ModelInfo


class Inspected(msgspec.Struct, frozen=True, tag=True):
    """The answer to Inspect; None if a bug prevents it."""

    snapshot: Snapshot | None


WorkerEvent = Event | Loading | Loaded | Inspected
