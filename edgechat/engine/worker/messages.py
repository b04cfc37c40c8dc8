"""What front end and worker say to each other: typed messages, no pickle, nothing native.

front end                                worker
Load(plan, upkeep)                ->
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
<-     Persisted(chat)                   its state is on disk, or need not be
Forget(chat)                      ->
Inspect(chat)                     ->
<-     Inspected(snapshot)
end of file                       ->     the worker ends

Events come in lists, those of one step of the engine together.
"""

from __future__ import annotations

import msgspec

from edgechat.engine.snapshot import Snapshot
from edgechat.engine.types import CachePolicy, ChatRequest, Embed, Event, ModelInfo, Translate
from edgechat.planner.plan import LoadPlan


class Load(msgspec.Struct, frozen=True, tag=True):
    """Load the model; the first message of a worker's life, sent once."""

    plan: LoadPlan
    upkeep: CachePolicy = CachePolicy()


class Generate(msgspec.Struct, frozen=True, tag=True):
    """Answer a request."""

    request: ChatRequest


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Stop a request within one decode call; what it has cached stays valid."""

    request_id: str


class Persist(msgspec.Struct, frozen=True, tag=True):
    """Nobody looks at this chat (None: at any) any more: put its state on disk if that is worth it."""

    chat: str | None = None


class Forget(msgspec.Struct, frozen=True, tag=True):
    """A chat is deleted: nothing of it is kept, in memory or on disk."""

    chat: str


class Inspect(msgspec.Struct, frozen=True, tag=True):
    """Say what there is now, between two steps. chat: the one that is looked at (None: answered last)."""

    chat: str | None = None


Command = Load | Generate | Cancel | Persist | Forget | Inspect | Embed | Translate


class Loading(msgspec.Struct, frozen=True, tag=True):
    """The load goes on; `progress` is from 0 to 1."""

    progress: float


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The model is ready."""

    model: ModelInfo


class Inspected(msgspec.Struct, frozen=True, tag=True):
    """The answer to Inspect; None where a fault of ours lies in the way."""

    snapshot: Snapshot | None


WorkerEvent = Event | Loading | Loaded | Inspected
