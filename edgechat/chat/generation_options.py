"""How a reply is to be generated."""

from __future__ import annotations

import msgspec

from edgechat.chat.records import Chat, ChatSettings
from edgechat.engine.types import ChatRequest, ModelInfo, Overflow, Sampling
from edgechat.models.adapters.reading import AdapterUse
from edgechat.planner.plan import LoadPlan
from edgechat.settings import SamplingDefaults, Settings


class GenerationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a reply is to be generated; the fields of a ChatRequest."""

    sampling: Sampling = Sampling()
    sampling_set: tuple[str, ...] | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    think: bool | None = None
    overflow: Overflow = "window"
    adapters: tuple[AdapterUse, ...] = ()

    def request(self, id: str, chat: Chat) -> ChatRequest:
        """Return the request for a reply in a chat, still without messages."""
        return ChatRequest(id=id, date=chat.date, chat=chat.id, **msgspec.structs.asdict(self))


class CommandLineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command line for all replies; None and empty: not set."""

    sampling: SamplingDefaults = SamplingDefaults()
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    think: bool | None = None
    overflow: Overflow | None = None
    tools: tuple[str, ...] | None = None
    adapters: tuple[str, ...] | None = None
    """LoRA adapters, as FILE or NAME:SCALE; (): none. They are in the plan."""
    documents: tuple[str, ...] | None = None
    """Names of collections in which what helps to answer is looked for."""


def resolve_options(
    options: CommandLineOptions,
    chat: ChatSettings,
    settings: Settings,
    plan: LoadPlan | None = None,
    model: ModelInfo | None = None,
) -> GenerationOptions:
    """Resolve each option: the command line's, else the chat's, the settings', or the model's own.

    plan, model: None if they are not known yet. Of adapters, those of the plan: a chat's own have to be found
    on the disk first, see `ChatSession.adapters`.
    """
    think = chat.think if options.think is None else options.think
    # The setting applies to models that can switch; options and chats raise an error for others.
    if think is None and (model is None or model.can_switch_thinking):
        think = settings.think
    defaults = plan.sampling_for(think) if plan is not None else settings.sampling
    given = options.sampling.over(chat.sampling.over(defaults)).given()
    return GenerationOptions(
        sampling=Sampling(**given, seed=options.seed),
        sampling_set=tuple(given),
        max_tokens=options.max_tokens,
        stop=options.stop,
        think=think,
        overflow=options.overflow or settings.overflow,
        adapters=tuple(adapter.use for adapter in plan.adapters) if plan is not None else (),
    )
