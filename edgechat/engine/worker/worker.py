"""Worker process: runs the engine's loop between a command pipe and an event pipe.

It exits when its parent does: however the parent died, the thread that reads commands reaches the end of the
pipe and exits the process at once, no matter what native code is doing.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import BinaryIO

import msgspec
import psutil

from edgechat.base import logs
from edgechat.base.errors import EdgechatError, EngineError
from edgechat.base.process import frames, spawn
from edgechat.device import mlx
from edgechat.engine.backends.base import Backend, Interruption
from edgechat.engine.engine import EngineCore
from edgechat.engine.kv.prefix_cache import Rent
from edgechat.engine.kv.state_store import KVStateStore
from edgechat.engine.prompt.template import ChatTemplate, template_process
from edgechat.engine.protocol import cannot_embed
from edgechat.engine.scheduling.preparation import fault
from edgechat.engine.speculative.controller import Controller, DraftHistory
from edgechat.engine.speculative.drafters import load_draft
from edgechat.engine.speculative.estimates import StepCost, expected_shapes
from edgechat.engine.types import (
    CachePolicy,
    ChatRequest,
    Embed,
    ErrorInfo,
    Failed,
    Finished,
    ModelInfo,
    Persisted,
    Translate,
)
from edgechat.engine.worker import embeddings, messages
from edgechat.engine.worker.inspection import Inspector
from edgechat.engine.worker.load_report import LoadReport, anonymous_memory
from edgechat.engine.worker.messages import Cancel, Command, Generate, Inspected, Loaded, WorkerEvent
from edgechat.models.local.stores import fingerprint_of
from edgechat.models.local.upkeep import note_use
from edgechat.planner.plan import LoadPlan

_LOG = logging.getLogger(__name__)
_PROGRESS_SECONDS = 0.05
_DISK_PAUSE = 0.002  # seconds between checks for background work while otherwise idle

OpenBackend = Callable[[LoadPlan, Callable[[float], None] | None], Backend]


class Pipe:
    """Receives commands and sends events."""

    def __init__(self, incoming: BinaryIO, outgoing: BinaryIO) -> None:
        self.interruption: Interruption | None = None
        """Interrupts a backend call when a command cannot wait."""
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._first: Command | None = None
        self._incoming = incoming
        self._outgoing = outgoing
        self._encoder = msgspec.msgpack.Encoder()
        threading.Thread(target=self._read, daemon=True, name="commands").start()

    def _read(self) -> None:
        decoder = msgspec.msgpack.Decoder(Command)
        try:
            while (payload := frames.read(self._incoming)) is not None:
                command = decoder.decode(payload)
                self._commands.put(command)
                if self.interruption is not None and isinstance(command, Generate | Cancel):
                    self.interruption.interrupt()
        except (frames.BrokenFrame, msgspec.DecodeError, OSError) as error:
            _LOG.error("the pipe to the front end broke: %s", error)
        # Not sys.exit: a native call may take a long time, and its result is no longer needed.
        os._exit(0)

    def first(self) -> Command:
        """Wait for a command and return it."""
        return self._commands.get()

    def wait(self, pause: float | None) -> None:
        """Wait up to `pause` seconds (None means forever) for a command, then clear the interrupt.

        In this order, interrupts for received commands are cleared, and interrupts for later ones are kept.
        """
        if pause != 0:
            with contextlib.suppress(queue.Empty):
                self._first = self._commands.get(timeout=pause)
        if self.interruption is not None:
            self.interruption.clear_interrupt()

    def received(self) -> Iterable[Command]:
        """Yield the commands received so far."""
        if self._first is not None:
            yield self._first
            self._first = None
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._commands.get_nowait()

    def send(self, events: Sequence[WorkerEvent]) -> None:
        """Write events as one message. Exits the process if the parent is gone."""
        if not events:
            return
        try:
            payload = self._encoder.encode(events)
        except Exception:  # an event cannot be encoded; send the others
            payload = self._encoder.encode([self._encodable(event) for event in events])
        try:
            frames.write(self._outgoing, payload)
        except OSError:
            os._exit(0)

    def _encodable(self, event: WorkerEvent) -> WorkerEvent:
        """Return the event, or a failure for its request if the event cannot be encoded."""
        try:
            self._encoder.encode(event)
        except Exception as error:
            return Failed(getattr(event, "request_id", None), ErrorInfo.of(fault(error)))
        return event


def open_backend(plan: LoadPlan, progress: Callable[[float], None] | None) -> Backend:
    """Load a plan's model with the plan's backend, reporting progress from 0 to 1."""
    # Imported here because each backend has its own native library, and only one is needed.
    if plan.backend == "mlx":
        if mlx.missing():
            from edgechat.planner.candidates import without_mlx

            raise without_mlx(f"{plan.model_name} is an MLX model, and MLX cannot be used here.")
        from edgechat.engine.backends.mlx.backend import MlxBackend

        return MlxBackend(plan, progress)
    from edgechat.engine.backends.llama_cpp import LlamaCppBackend

    return LlamaCppBackend(plan, progress)


def load(
    plan: LoadPlan,
    cache_policy: CachePolicy,
    send: Callable[[Sequence[WorkerEvent]], None],
    open_backend: OpenBackend = open_backend,
) -> tuple[EngineCore, ModelInfo, LoadReport]:
    """Load the model as planned, reporting progress, and warm it up."""
    began = time.perf_counter()
    renderer = template_process()
    renderer.start()
    backend = open_backend(plan, _progress_reporter(send))
    vocabulary = backend.vocabulary
    own = plan.defaults
    template = ChatTemplate(
        backend.chat_template or own.template,
        bos=vocabulary.bos,
        eos=vocabulary.eos,
        stop=own.stop,
        system=own.system,
        process=renderer,
    )
    identity = partial(fingerprint_of, plan.model_path, backend.state_format)
    states = None if cache_policy.disk_bytes == 0 else KVStateStore(cache_policy.disk_bytes, identity)
    controller, history = Controller(StepCost(expected_shapes(plan.forecast))), DraftHistory(plan)
    load_report = LoadReport(plan, lambda: history.save(controller))
    differences = load_report.loaded(
        backend.buffers, backend.touched_bytes, anonymous_memory(), vocabulary.size
    )
    small = plan.for_draft() if plan.draft and plan.draft.kind == "model" else None
    drafter, no_draft = load_draft(small, backend, lambda draft: open_backend(draft, None))
    engine = EngineCore(
        backend,
        template,
        cache_policy=cache_policy,
        states=states,
        model_drafter=drafter,
        ngrams=plan.ngrams,
        controller=controller,
    )
    if plan.forecast is not None:
        engine.scheduler.cost.expect(plan.forecast.prefill, plan.forecast.graph)
    engine.scheduler.cache.rent = Rent.of(plan)
    engine.warm_up(whole=bool(plan.devices))
    history.restore(controller)
    if cache_policy.grammars:
        engine.constraints.prepare()
    for path in (plan.model_path, plan.draft.model_path if plan.draft else ""):
        if path:
            note_use(path)
    model = ModelInfo(
        name=plan.model_name,
        architecture=backend.architecture,
        backend=plan.backend,
        n_params=backend.n_params,
        context=backend.context,
        train_context=backend.train_context,
        can_switch_thinking=template.can_switch_thinking,
        has_tools=not template.calls.told,
        has_effort=template.has_effort,
        sees=backend.media_encoder is not None and backend.media_encoder.sees,
        hears=backend.media_encoder is not None and backend.media_encoder.hears,
        no_vision=backend.no_vision,
        template="own" if template.is_own else "chatml",
        load_ms=1000 * (time.perf_counter() - began),
        buffers=backend.buffers,
        differences=differences,
        drafters=engine.speculation.names(plan),
        no_draft=no_draft or backend.no_head or plan.no_draft or engine.speculation.why_off,
        memory_bytes=psutil.Process().memory_info().rss,
    )
    return engine, model, load_report


def _progress_reporter(send: Callable[[Sequence[WorkerEvent]], None]) -> Callable[[float], None]:
    """Return a function that reports progress at a limited rate."""
    sent_at = 0.0

    def progress(value: float) -> None:
        nonlocal sent_at
        if time.perf_counter() - sent_at > _PROGRESS_SECONDS:
            sent_at = time.perf_counter()
            send([messages.Loading(value)])

    return progress


def serve_embeddings(engine: embeddings.EmbeddingEngine, pipe: Pipe) -> None:
    """Run the loop of an embedding engine; see `serve`."""
    while True:
        pipe.wait(None if engine.is_idle else 0.0)
        for command in pipe.received():
            pipe.send(_handle_safely(partial(embeddings.handle, engine), command))
        pipe.send(engine.step())


def serve(engine: EngineCore, pipe: Pipe, load_report: LoadReport) -> None:
    """Run the engine's loop: step while there is work, otherwise wait for commands."""
    inspector = Inspector(engine)
    pipe.interruption = engine.backend.interruption
    while True:
        pause = None if engine.is_idle else _DISK_PAUSE if engine.is_waiting else 0.0
        pipe.wait(pause)
        for command in pipe.received():
            pipe.send(_handle_safely(partial(_handle, engine, inspector), command))
        load_report.before_step(engine.n_running)
        events = engine.step()
        try:
            has_ended = any(isinstance(event, Finished) for event in events)
            beside = engine.scheduler.cache.cells_of_busy() if has_ended else 0
            load_report.learn_from(events, engine.n_running, beside)  # before the front end can exit
        except Exception as error:  # nothing depends on it
            fault(error)
        pipe.send(events)


def _handle_safely(
    handle: Callable[[Command], Sequence[WorkerEvent]], command: Command
) -> Sequence[WorkerEvent]:
    """Execute a command. An internal error only makes its request fail."""
    try:
        return handle(command)
    except Exception as error:
        failed = ErrorInfo.of(fault(error))
        match command:
            case Generate(ChatRequest(id=name)) | Cancel(name) | Embed(name) | Translate(name):
                return [Failed(name, failed)]
            case messages.Persist(chat):
                return [Persisted(chat)]
            case messages.Inspect():
                return [Inspected(None)]
        return []


def _handle(engine: EngineCore, inspector: Inspector, command: Command) -> Sequence[WorkerEvent]:
    match command:
        case Generate(request):
            engine.begin(request)
        case Cancel(request_id):
            return engine.cancel(request_id)
        case messages.Persist(chat):
            engine.persist(chat)
        case messages.Forget(chat):
            engine.forget(chat)
        case messages.Inspect(chat):
            return [Inspected(inspector.inspect(chat))]
        case Embed(request_id):
            return [Failed(request_id, ErrorInfo.of(cannot_embed()))]
        case Translate():
            engine.translate(command)
        case messages.Load():
            raise ValueError("a worker loads one model in its life")
    return []


def main(open_backend: OpenBackend = open_backend) -> None:
    """Run until the parent exits. open_backend: loads the plan's model and its draft model."""
    incoming, outgoing = spawn.adopt_pipe()
    logs.to_stderr()
    faulthandler.enable()
    pipe = Pipe(incoming, outgoing)
    first = pipe.first()
    if not isinstance(first, messages.Load):
        raise ValueError("the first command must be Load")
    try:
        serving = _load_first(first, pipe, open_backend)
    except EdgechatError as error:
        pipe.send([Failed(None, ErrorInfo.of(error))])
        return
    except Exception as error:
        _LOG.error("internal error while loading", exc_info=error)
        pipe.send([Failed(None, ErrorInfo.of(EngineError(f"The engine failed while loading: {error!r}")))])
        return
    serving()


def _load_first(first: messages.Load, pipe: Pipe, open_backend: OpenBackend) -> Callable[[], None]:
    """Load the model, report that it is loaded, and return the loop to run. Raises EdgechatError."""
    if first.plan.embeddings:
        embedding, model = embeddings.load(first.plan, _progress_reporter(pipe.send))
        pipe.send([Loaded(model)])
        return partial(serve_embeddings, embedding, pipe)
    engine, model, load_report = load(first.plan, first.cache_policy, pipe.send, open_backend)
    pipe.send([Loaded(model)])
    return partial(serve, engine, pipe, load_report)
