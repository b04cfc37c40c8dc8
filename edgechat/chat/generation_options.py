"""Generation options: sampling parameters and limits for replies, and how they are resolved."""

from __future__ import annotations

import msgspec

from edgechat.chat.records import Chat, ChatSettings
from edgechat.engine.types import ChatRequest, ModelInfo, Overflow, Sampling
from edgechat.native.params import AdapterUse
from edgechat.planner.plan import LoadPlan
from edgechat.settings import SamplingDefaults, Settings


class GenerationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for a reply: fields of a ChatRequest."""

    sampling: Sampling = Sampling()
    sampling_set: tuple[str, ...] | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    think: bool | None = None
    overflow: Overflow = "window"
    adapters: tuple[AdapterUse, ...] = ()

    def request(self, id: str, chat: Chat) -> ChatRequest:
        """Return the request for a reply in a chat, without messages."""
        return ChatRequest(id=id, date=chat.date, chat=chat.id, **msgspec.structs.asdict(self))


class CommandLineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Command-line options that apply to all replies; None or empty if not set."""

    sampling: SamplingDefaults = SamplingDefaults()
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    think: bool | None = None
    overflow: Overflow | None = None
    tools: tuple[str, ...] | None = None
    adapters: tuple[str, ...] | None = None
    """LoRA adapters, as FILE or NAME:SCALE; () for none. The plan also contains them."""
    documents: tuple[str, ...] | None = None
    """Names of document collections to search."""


def resolve_options(
    options: CommandLineOptions,
    chat: ChatSettings,
    settings: Settings,
    plan: LoadPlan | None = None,
    model: ModelInfo | None = None,
) -> GenerationOptions:
    """Resolve each option, in order of precedence: command line, chat, settings, model.

    plan, model: None if unknown. The adapters are taken from the plan. A chat's own adapters must first be
    looked up on disk; see `ChatSession.adapters`.
    """
    think = chat.think if options.think is None else options.think
    # The setting applies only to models whose thinking can be switched. For other models, an explicit choice
    # is an error.
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
