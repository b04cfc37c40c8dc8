"""Reasons for a plan, written as sentences."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from edgechat.base.text import figure, mebibytes, one_line, seconds
from edgechat.device.speed import DeviceSpeed
from edgechat.models.formats.header import ModelHeader, senses
from edgechat.models.local.ollama_store import ModelDefaults, in_words, system_in_words
from edgechat.native.params import AttentionKind
from edgechat.planner.estimate.budget import RAM, Budget
from edgechat.planner.estimate.calibration import ChatUse
from edgechat.planner.estimate.memory import recurrent_bytes
from edgechat.planner.estimate.shape import ModelShape
from edgechat.planner.estimate.speed import PROMPT, Forecast, is_plain_worth, on_links
from edgechat.planner.placement.model_on_machine import LONGEST_TEXT, LoadConfig
from edgechat.planner.plan import LoadPlan
from edgechat.planner.request import BACKENDS, PlanRequest

LONGEST, USUAL = 32768, 16384
"""The longest context chosen by default, and the longest that may be slow to fill, in tokens."""

_VLLM = 7 * 2**29
"""Bytes that vLLM takes on a CPU in addition to unquantized weights, including 1 GiB for its KV cache."""
_SLOWS = 0.9
"""Fraction of the usual speed below which the speed of a longer chat is mentioned."""


def context(header: ModelHeader, budget: Budget, load: LoadConfig, slower: bool) -> str:
    """Return the reason for the context. slower: whether a longer one would have been slower."""
    trained = header.context_length
    cache = "" if load.params.cache_type == "f16" else f", with the KV cache in {load.params.cache_type}"
    if trained and load.context >= min(trained, LONGEST):
        why = "more is rarely used"
        if load.context >= trained:
            why = "the model was not trained on longer contexts"
        return f"Context {load.context}{cache}: {why}, and it fits comfortably."
    if slower:
        return f"Context {load.context}{cache}: more would push layers off the accelerator."
    if header.makes_embeddings and load.context >= LONGEST_TEXT:
        return f"Context {load.context}: longer texts are rarely read as a whole."
    if load.context >= USUAL:
        return f"Context {load.context}{cache}: enough for long conversations, and it fits comfortably."
    free = mebibytes(budget.ram)
    return f"Context {load.context}{cache}: more would leave too little of {free} for other programs."


def own_defaults(own: ModelDefaults, header: ModelHeader) -> Iterator[str]:
    """Yield sentences about the effects of the defaults in Ollama's store."""
    if words := in_words(own):
        yield f"Ollama's parameters for this model apply unless something else is set: {words}."
    if own.system:
        yield f"Ollama's system prompt for it is used unless there is another: {system_in_words(own)!r}."
    if own.template and header.chat_template is None:
        yield f"The file has no chat template; Ollama's, in the {own.chat_format} format, is used."


def backend(header: ModelHeader, budget: Budget, request: PlanRequest) -> Iterator[str]:
    """Yield sentences about which backend is used and why, unless it is obvious."""
    name = BACKENDS[header.format]
    asked = name in (request.backend, request.prefers)
    if name != "mlx" and not asked:
        return
    how = ", as requested" if asked else ""
    if name == "llama.cpp":
        yield f"Runs on llama.cpp{how}."
    elif budget.cards:
        yield f"Runs on MLX{how}, on the GPU ({budget.cards[-1].accelerator.name})."
    else:
        yield f"Runs on MLX{how}, on the CPU, which is much slower than llama.cpp."


def split(header: ModelHeader, budget: Budget, load: LoadConfig) -> Iterator[str]:
    """Yield sentences about which devices run the layers, if there is a choice."""
    layers, parts = load.layout, header.n_layers + 1
    if header.format == "mlx" or not budget.cards:
        return
    if not layers.n:
        yield "All layers run on the CPU: none fits on an accelerator, or it would be slower there."
        return
    workers = {card.name: f" ({card.accelerator.worker})" for card in budget.cards if card.accelerator.worker}
    where = ", ".join(
        f"{count} on {name}{workers.get(name, '')}"
        for name, count in zip(layers.devices, layers.split, strict=True)
    )
    rest = f", {parts - layers.n} on the CPU" if layers.n < parts else ""
    experts = f"; the experts of {layers.experts_in_ram} stay in RAM" if layers.experts_in_ram else ""
    yield f"Of {parts} layers (counting the output as one), {where}{rest}{experts}."


def workers(
    budget: Budget,
    load: LoadConfig,
    rates: Mapping[str | None, DeviceSpeed],
    with_layers_on: Callable[[Collection[str], LoadConfig], Forecast | None],
) -> Iterator[str]:
    """Yield the speed of each worker's link, or the reason why the worker is not used."""
    for address, cards in _by_worker(budget).items():
        link = rates[cards[0]].link
        assert link is not None
        what = (
            f"{mebibytes(int(link.up))}/s up and {mebibytes(int(link.down))}/s down, with a round trip of "
            f"{figure(1000 * link.round_trip)} ms"
        )
        if any(name in load.layout.devices for name in cards):
            yield f"The link to {address} carries {what}."
            continue
        there = with_layers_on(cards, load)
        why = "no layer fits there" if not load.layout.n else "all layers fit elsewhere"
        if there is not None:
            slower, now = (1 / one.decoding(PROMPT) for one in (there, load.forecast))
            why = f"about {figure(slower)} tokens/s with layers there, {figure(now)} without"
        yield f"{address} is not used: {why} (its link carries {what})."


def links(shape: ModelShape, load: LoadConfig, rates: Mapping[str | None, DeviceSpeed]) -> str:
    """Return how much time the links to workers take, or '' if there are no workers."""
    seconds = on_links(shape, load.layout.placed(shape), rates, 1)
    return f"Each token spends {figure(1000 * seconds)} ms on links to other machines." if seconds else ""


def _by_worker(budget: Budget) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for card in budget.cards:
        if card.accelerator.worker:
            names.setdefault(card.accelerator.worker, []).append(card.name)
    return names


def memory(budget: Budget, plan: LoadPlan, source: str) -> str:
    """Return how much memory is needed, where that figure comes from, and how much is free."""
    texts = []
    for part in plan.memory:
        sizes = (
            ("weights", part.weights_bytes),
            ("cache", part.cache_bytes),
            ("compute", part.compute_bytes),
            ("the program about", part.program_bytes),
            ("checkpoints up to", part.checkpoint_bytes),
            ("the projector about", part.projector_bytes),
            ("adapters", part.adapter_bytes),
        )
        listed = [f"{what} {mebibytes(size)}" for what, size in sizes if size]
        place = f" on {part.name}" if part.name != RAM else " of RAM" if len(plan.memory) > 1 else ""
        texts.append(f"{mebibytes(part.total_bytes)}{place}: {', '.join(listed)}")
    names = {part.name for part in plan.memory}
    cards = "".join(
        f", {mebibytes(card.budget)} on {card.name}" for card in budget.cards if card.name in names
    )
    return f"Needs {'; '.join(texts)} ({source}); {budget.in_words}{cards}."


def attention(
    shape: ModelShape, load: LoadConfig, other: Forecast | None, use: ChatUse, request: PlanRequest
) -> str:
    """Return the reason for the kind of attention, or '' if there was no choice.

    other: the forecast for the other kind. use: the usual token counts in chats.
    """
    params, wish = load.params, request.attention
    if wish == params.attention:
        return f"{wish.capitalize()} attention, as requested."
    if other is None or shape.heads is None:
        return ""
    heads = f"with {shape.heads.keys}-channel heads,"
    if not params.flash_attention:
        return f"Plain attention: {heads} it {_faster(load.forecast, other, 'flash')}."
    if is_plain_worth(other, load.forecast, use, drafts=load.drafts):
        faster = _faster(other, load.forecast, "flash")
        return f"Flash attention, because memory is scarce: {heads} plain attention {faster}."
    return f"Flash attention: {heads} plain attention would hardly be faster, but would take more memory."


def _faster(one: Forecast, other: Forecast, kind: AttentionKind) -> str:
    """Return how much faster one kind of attention writes or reads than the other, whichever gains more.

    kind: the other kind.
    """
    writes = other.decoding(PROMPT) / one.decoding(PROMPT)
    reads = other.prefilling(PROMPT) / one.prefilling(PROMPT)
    if reads > writes:
        return f"reads prompts of {PROMPT:,} tokens {reads:.1f} times as fast as {kind} attention"
    return f"writes {writes:.1f} times as fast as {kind} attention after {PROMPT:,} tokens"


def sequences(header: ModelHeader, load: LoadConfig) -> str:
    """Return a sentence about the number of sequences and the memory that they share or need."""
    state = recurrent_bytes(header, 1)
    n = load.params.n_seq_max
    if header.makes_embeddings:
        what = "Scores" if header.kind == "reranking" else "Produces embeddings of"
        return f"{what} up to {n} texts per call."
    if not state:
        return f"{n} sequences share the KV cache, so several chats can continue at once."
    return f"{n} sequences, each with a recurrent state of {mebibytes(state)}."


def clients(header: ModelHeader, budget: Budget, load: LoadConfig, request: PlanRequest) -> Iterator[str]:
    """Yield how many clients can be served at the same time, and which program could serve more."""
    n, asked = load.params.n_seq_max, request.clients
    if asked is None:
        return
    if asked <= n:
        yield f"Up to {n} clients are served at a time."
        return
    instead = ""
    # The measurements behind this were made on CPUs; see docs/scale.md.
    if not budget.cards and not header.makes_embeddings and 2 * header.n_params + _VLLM <= budget.ram:
        instead = " vLLM could serve all of them: edgechat plan OWNER/REPO --engine vllm"
    yield f"{n} of {asked} clients are served at a time, and the others wait.{instead}"


def vision(plan: LoadPlan, why_there: str) -> str:
    """Return what the projector is for and where it is placed, or why there is none."""
    projector = plan.projector
    if projector is None:
        return plan.no_vision
    can = senses(projector.modalities)
    where = f"on {projector.device}" if projector.device else "in RAM"
    why = f", {why_there}" if why_there else ""
    tokens = f" A picture takes up to {projector.image_tokens} tokens." if projector.vision else ""
    return f"The model {can} with {one_line(projector.name)}, {where}{why}.{tokens}"


def adapters(plan: LoadPlan) -> str:
    """Return which LoRA adapters are applied."""
    named = [
        f"{one_line(one.name)} (rank {one.rank}, {mebibytes(one.total_bytes)}"
        f"{f', scale {one.scale:g}' if one.scale != 1 else ''})"
        for one in plan.adapters
    ]
    return f"With the LoRA adapter{'s' * (len(named) > 1)} {', '.join(named)}." if named else ""


def drafts(plan: LoadPlan) -> str:
    """Return what produces the drafts, or why nothing does."""
    if plan.head is not None:
        size, gain = mebibytes(plan.head.total_bytes), f"{plan.head.gain:.1f} times as fast"
        where = f" in {one_line(plan.draft.model_name)}, about" if plan.draft is not None else ","
        layers = (
            "the layers" if plan.draft is not None and plan.draft.kind == "eagle3" else "its own layers (MTP)"
        )
        what = f"{layers}{where} {size}, which should make replies {gain}"
        return f"Drafts: {what}, and n-grams of the conversation. {plan.no_draft}".rstrip()
    if plan.draft is not None:
        size = mebibytes(plan.draft.total_bytes)
        return f"Drafts: {plan.draft.model_name}, {size}, and n-grams of the conversation."
    if plan.ngrams:
        return f"Drafts: n-grams of the conversation. {plan.no_draft}".rstrip()
    return plan.no_draft


def speed(plan: LoadPlan) -> str:
    """Return the predicted speed and what the prediction is based on."""
    predicted = plan.predicted
    assert predicted is not None
    if plan.embeddings:
        return f"About {figure(predicted.prompt_tps)} tokens/s."
    deep = [one for one in predicted.by_depth if one.depth > PROMPT][:1]
    later = "".join(
        f" ({figure(one.decode_tps)} after {one.depth:,})"
        for one in deep
        if one.decode_tps < _SLOWS * predicted.decode_tps
    )
    return (
        f"About {figure(predicted.decode_tps)} tokens/s{later}, and {seconds(predicted.ttft_ms / 1000)} to "
        f"the first token after a prompt of 1,000: {predicted.basis}."
    )
