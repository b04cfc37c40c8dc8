"""What settings.toml may say. The description of a field is its documentation, here and on the screen."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Group = Literal["Model", "Conversation", "Sampling", "Appearance", "Machine", "Presets"]
Counts = Literal["now", "new chat", "load", "start"]
"""From when on a change counts: at once, for chats begun later, when a model is next loaded, when edgechat is
next started."""
Theme = Literal["terminal", "dark", "light", "high-contrast"]
Backend = Literal["llama.cpp", "mlx"]
"""What computes a model."""

SYSTEM_LENGTH = 100_000
"""Letters that a system prompt may have."""
_INT = 2**31 - 1
PRESET_NAME = 40
"""Letters that the name of a preset may have."""

_Whole = Annotated[int, Meta(ge=0, le=_INT)]
_Tokens = Annotated[int, Meta(ge=1, le=_INT)]
_Threads = Annotated[int, Meta(ge=1, le=512)]
_Name = Annotated[str, Meta(min_length=1, max_length=4096)]
_System = Annotated[str, Meta(min_length=1, max_length=SYSTEM_LENGTH)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_SomeShare = Annotated[float, Meta(gt=0, le=1)]
_Warmth = Annotated[float, Meta(ge=0, le=5)]
_Factor = Annotated[float, Meta(ge=0.01, le=5)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Minutes = Annotated[float, Meta(ge=0, le=10**6)]
_GiB = Annotated[float, Meta(ge=0, le=2**20)]

_BY_MODEL = "as the model's makers recommend"


def _about(text: str, group: Group, counts: Counts, *, unset: str = "") -> Meta:
    """Document a field. unset: what None means, in words."""
    return Meta(description=text, extra={"group": group, "counts": counts, "unset": unset})


def _sampling(text: str) -> Meta:
    return _about(text, "Sampling", "load", unset=_BY_MODEL)


class SamplingDefaults(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """How a token is chosen, as far as someone has an opinion; the fields of the engine's Sampling."""

    temperature: Annotated[
        _Warmth | None, _sampling("0 takes the likeliest token; higher values are more varied.")
    ] = None
    top_k: Annotated[
        _Whole | None, _sampling("Choose among this many of the likeliest tokens; 0 among all.")
    ] = None
    top_p: Annotated[
        _SomeShare | None,
        _sampling("Choose among the likeliest tokens that have this probability together; 1 among all."),
    ] = None
    min_p: Annotated[
        _Share | None,
        _sampling("Leave out tokens less likely than this share of the likeliest one's probability; 0 none."),
    ] = None
    repetition_penalty: Annotated[
        _Factor | None,
        _sampling("Divide the scores of tokens that came lately by this; 1 leaves them as they are."),
    ] = None
    presence_penalty: Annotated[
        _Penalty | None, _sampling("Take this off the scores of tokens that came lately, however often.")
    ] = None
    frequency_penalty: Annotated[
        _Penalty | None, _sampling("Take this off the scores of tokens that came lately, once for each time.")
    ] = None

    def over(self, other: SamplingDefaults) -> SamplingDefaults:
        """Return these values, and those of `other` where there is none here.

        With a temperature of 0 here the penalties of `other` are left out: the likeliest token is wanted.
        """
        below = other.without_penalties() if self.temperature == 0 else other
        return SamplingDefaults(**(below.given() | self.given()))

    def without_penalties(self) -> SamplingDefaults:
        """Return the values that do not depend on the text so far."""
        return msgspec.structs.replace(
            self, repetition_penalty=None, presence_penalty=None, frequency_penalty=None
        )

    def given(self) -> dict[str, Any]:
        """Return the values that are there, by name: `Sampling(**defaults.given())`."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """How a chat is held, under a name: a table [presets.NAME]. What is None stays as it is."""

    system: _System | None = None
    think: bool | None = None
    sampling: SamplingDefaults = SamplingDefaults()


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What settings.toml may say."""

    model: Annotated[
        _Name | None,
        _about(
            "The model to start with: a name of the catalogue, or the path of a GGUF file or an MLX folder.",
            "Model",
            "start",
            unset="the one used last, at first the guide",
        ),
    ] = None
    context: Annotated[
        _Tokens | None,
        _about(
            "Tokens that a chat and its answer may take; a model trained on fewer gets its own length.",
            "Model",
            "load",
            unset="the most that fits comfortably, up to 16384, or 32768 where that stays quick",
        ),
    ] = None
    draft: Annotated[
        _Name | None,
        _about(
            "Who guesses the next tokens, so that the model has only to check them: auto (the model that the "
            "catalogue names, where it is here and fits beside, and what was said before), none, ngram (only "
            "what was said before), or the name or path of a model that can draft for this one.",
            "Model",
            "load",
            unset="auto",
        ),
    ] = None
    backend: Annotated[
        Backend | None,
        _about(
            "What computes models, where one is there for both: llama.cpp (GGUF files, everywhere), or mlx "
            "(MLX models: made for Macs with Apple Silicon; on Linux it computes on the processor, slowly).",
            "Model",
            "load",
            unset="llama.cpp; on Apple Silicon whichever is the better for the model",
        ),
    ] = None
    system: Annotated[
        _System | None,
        _about("The system prompt of new chats.", "Conversation", "new chat", unset="none"),
    ] = None
    think: Annotated[
        bool | None,
        _about(
            "Whether a model that can think first does so; slow machines may want it off.",
            "Conversation",
            "now",
            unset="as the model does by itself",
        ),
    ] = None
    overflow: Annotated[
        Literal["window", "error"],
        _about(
            "Where a conversation outgrows the context: window leaves its oldest turns out of what the model "
            "is sent (the system prompt and the first turn stay), error refuses the question.",
            "Conversation",
            "now",
        ),
    ] = "window"
    sampling: SamplingDefaults = SamplingDefaults()
    """Wins over what the catalogue recommends for a model."""
    theme: Annotated[
        Theme,
        _about(
            "Colours: terminal takes the terminal's own. NO_COLOR in the environment wins over it.",
            "Appearance",
            "now",
        ),
    ] = "terminal"
    screen_reader: Annotated[
        bool,
        _about(
            "Hold the conversation line by line, in plain sentences, instead of filling the terminal.",
            "Appearance",
            "start",
        ),
    ] = False
    threads: Annotated[
        _Threads | None,
        _about("Threads that compute.", "Machine", "load", unset="one for each performance core"),
    ] = None
    offline: Annotated[
        bool,
        _about(
            "Never use the network: only what is on this machine, and what was learnt of the hub before.",
            "Machine",
            "now",
        ),
    ] = False
    rpc: Annotated[
        tuple[str, ...],
        _about(
            'Servers of llama.cpp\'s RPC backend on this machine ("127.0.0.1:50052"), whose devices may take '
            "layers. Others are refused: the protocol knows no passwords.",
            "Machine",
            "load",
        ),
    ] = ()
    idle_minutes: Annotated[
        _Minutes,
        _about(
            "Minutes without a request after which the model's memory is given back; 0 keeps it.",
            "Machine",
            "load",
        ),
    ] = 10
    settle: Annotated[
        bool,
        _about(
            "Compute between the turns, while nobody waits, what the next one will begin with.",
            "Machine",
            "load",
        ),
    ] = True
    settle_on_battery: Annotated[
        bool, _about("Compute it also where the machine runs on its battery.", "Machine", "load")
    ] = True
    state_gib: Annotated[
        _GiB | None,
        _about(
            "GiB of disk for what was computed of chats, so that they go on at once; 0 keeps nothing.",
            "Machine",
            "load",
            unset="4, or a tenth of what is free if that is less",
        ),
    ] = None
    presets: Annotated[
        dict[str, Preset],
        _about(
            "Ways to hold a chat, by name: each may have a system prompt, think, and sampling.",
            "Presets",
            "new chat",
        ),
    ] = {}
