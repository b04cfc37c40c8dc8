"""What the worker process does for a model that makes embeddings: load it, and obey commands."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

from edgechat.engine.embedding.engine import EmbeddingEngine
from edgechat.engine.prompt.translation import translate
from edgechat.engine.types import (
    Cancel,
    Command,
    Embed,
    ErrorInfo,
    Event,
    Failed,
    Generate,
    Inspect,
    Inspected,
    ModelInfo,
    Persist,
    Persisted,
    Translate,
)
from edgechat.engine.worker.kinds import cannot_chat
from edgechat.engine.worker.load_report import LoadReport, anonymous_memory
from edgechat.models.local.usage import note_use
from edgechat.planner.plan import LoadPlan


def load(plan: LoadPlan, progress: Callable[[float], None]) -> tuple[EmbeddingEngine, ModelInfo]:
    """Load by the plan, telling the progress, and compute one token before calling it ready."""
    # Imported here: it brings the native library.
    from edgechat.engine.backends.llama_cpp_embedding import LlamaCppEmbedder

    began = time.perf_counter()
    backend = LlamaCppEmbedder(plan, progress)
    touched, n_vocab = backend.touched_bytes, backend.vocabulary.size
    found = LoadReport(plan).loaded(backend.buffers, touched, anonymous_memory(), n_vocab)
    engine = EmbeddingEngine(backend)
    engine.warm_up()
    note_use(plan.model_path)
    model = ModelInfo(
        name=plan.model_name,
        architecture=backend.architecture,
        backend=plan.backend,
        n_params=backend.n_params,
        context=backend.longest,
        train_context=backend.train_context,
        can_switch_thinking=False,
        template="own",
        load_ms=1000 * (time.perf_counter() - began),
        embedding=backend.dimensions,
        buffers=backend.buffers,
        differences=found,
        memory_bytes=psutil.Process().memory_info().rss,
    )
    return engine, model


def obey(engine: EmbeddingEngine, command: Command) -> list[Event]:
    """Do what a command says, and return what there is to say at once."""
    match command:
        case Embed():
            return engine.submit(command)
        case Cancel(request_id):
            return engine.cancel(request_id)
        case Inspect():
            return [Inspected(engine.look())]
        case Persist(chat):
            return [Persisted(chat)]  # nothing is kept of anybody
        case Translate():
            return [translate(engine.words, command)]
        case Generate(request):
            return [Failed(request.id, ErrorInfo.of(cannot_chat()))]
    return []
