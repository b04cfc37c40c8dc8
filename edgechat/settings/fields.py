"""The fields of settings.toml. Their descriptions also appear on the settings screen."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Group = Literal[
    "Model", "Conversation", "Sampling", "Appearance", "Machine", "Presets", "Prompts", "Remotes", "Engines"
]
AppliesFrom = Literal["now", "new chat", "load", "start"]
"""When a change takes effect: immediately, in new chats, the next time a model is loaded, or on restart."""
Theme = Literal["terminal", "dark", "light", "high-contrast"]
PictureMode = Literal["auto", "kitty", "blocks"]
"""How images are drawn: in the best way the terminal supports, with Kitty's protocol, or as half blocks."""
Backend = Literal["llama.cpp", "mlx"]
RemoteKind = Literal[
    "vllm", "sglang", "llama-server", "transformers", "ollama", "lmstudio", "tgi", "edgechat", "openai"
]
"""The program behind a remote engine; 'openai' is any other program that speaks OpenAI's protocol."""
AttentionWish = Literal["auto", "flash", "plain"]
"""How llama.cpp computes attention; 'auto' means whichever way is faster for the model on this machine."""
EngineName = Literal["vllm", "sglang", "transformers", "llama-server"]
"""A program that edgechat can start to run a model."""
RuntimeQuant = Literal["nf4", "int8", "none"]
"""How an engine program quantizes weights while loading them, using bitsandbytes."""

SYSTEM_LENGTH = 100_000
"""Maximum length of a system prompt, in characters."""
_INT = 2**31 - 1
NAME_LENGTH = 40
"""Maximum length of the names of presets and saved prompts, in characters."""

_Whole = Annotated[int, Meta(ge=0, le=_INT)]
_Tokens = Annotated[int, Meta(ge=1, le=_INT)]
_Threads = Annotated[int, Meta(ge=1, le=512)]
_Name = Annotated[str, Meta(min_length=1, max_length=4096)]
_System = Annotated[str, Meta(min_length=1, max_length=SYSTEM_LENGTH)]
_Prompt = Annotated[str, Meta(min_length=1, max_length=SYSTEM_LENGTH)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_SomeShare = Annotated[float, Meta(gt=0, le=1)]
_Warmth = Annotated[float, Meta(ge=0, le=5)]
_Factor = Annotated[float, Meta(ge=0.01, le=5)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Minutes = Annotated[float, Meta(ge=0, le=10**6)]
_Rounds = Annotated[int, Meta(ge=1, le=1000)]
_GiB = Annotated[float, Meta(ge=0, le=2**20)]

_BY_MODEL = "as the model's makers recommend"


def _about(text: str, group: Group, applies_from: AppliesFrom, *, unset: str = "") -> Meta:
    """Document a field. unset: a description of what None means."""
    return Meta(description=text, extra={"group": group, "applies_from": applies_from, "unset": unset})


def _sampling(text: str) -> Meta:
    return _about(text, "Sampling", "load", unset=_BY_MODEL)


class SamplingDefaults(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """Sampling parameters, with the same fields as the engine's Sampling. None means not set."""

    temperature: Annotated[
        _Warmth | None, _sampling("0 always takes the most likely token; higher values vary more.")
    ] = None
    top_k: Annotated[
        _Whole | None, _sampling("Sample from this many of the most likely tokens; 0: from all.")
    ] = None
    top_p: Annotated[
        _SomeShare | None,
        _sampling("Sample from the most likely tokens that have this probability together; 1: from all."),
    ] = None
    min_p: Annotated[
        _Share | None,
        _sampling("Drop tokens less likely than this share of the most likely one's probability; 0: none."),
    ] = None
    repetition_penalty: Annotated[
        _Factor | None, _sampling("Divides the scores of recent tokens; 1 leaves them unchanged.")
    ] = None
    presence_penalty: Annotated[
        _Penalty | None, _sampling("Subtracted from the scores of recent tokens.")
    ] = None
    frequency_penalty: Annotated[
        _Penalty | None, _sampling("Subtracted from the scores of recent tokens, once for each occurrence.")
    ] = None

    def over(self, other: SamplingDefaults) -> SamplingDefaults:
        """Return these values, with those that are not set filled in from `other`.

        If the temperature here is 0, the penalties in `other` are ignored, because the most likely token is
        wanted.
        """
        defaults = other.without_penalties() if self.temperature == 0 else other
        return SamplingDefaults(**(defaults.given() | self.given()))

    def without_penalties(self) -> SamplingDefaults:
        """Return the values without the penalties, which depend on the text generated so far."""
        return msgspec.structs.replace(
            self, repetition_penalty=None, presence_penalty=None, frequency_penalty=None
        )

    def given(self) -> dict[str, Any]:
        """Return the values that are set, keyed by name, for `Sampling(**defaults.given())`."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A named set of chat settings, stored as a table [presets.NAME]. Fields that are None change nothing."""

    system: _System | None = None
    think: bool | None = None
    sampling: SamplingDefaults = SamplingDefaults()
    adapters: tuple[_Name, ...] | None = None


class RemoteServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A server whose models are offered alongside the local ones, stored as a table [remotes.NAME]."""

    url: Annotated[str, Meta(min_length=1, max_length=2048)]
    """The server's address, with or without the trailing /v1."""
    key: str | None = None
    """The key to send as a bearer token."""
    key_env: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    """The environment variable that contains the key. An alternative to `key`."""
    kind: RemoteKind | None = None
    """The program that the server runs, or None to ask the server."""

    def __repr__(self) -> str:
        """Omit the key, which must not appear in any log."""
        return f"RemoteServer({self.url!r})"


class EngineProgram(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """How to start one of the programs that edgechat can run, stored as a table [engines.NAME]."""

    command: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    """The program, in shell syntax; None to find it by name. A single word gets the usual subcommand."""
    args: tuple[Annotated[str, Meta(max_length=4096)], ...] = ()
    """Arguments to append to the program's command line."""
    env: tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...] = ()
    """Environment variables to pass on, in addition to those that the program needs."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of settings.toml."""

    model: Annotated[
        _Name | None,
        _about(
            "The model to open with: a name of the catalogue, or the path of a GGUF file or an MLX folder.",
            "Model",
            "start",
            unset="the one used last; initially the guide",
        ),
    ] = None
    context: Annotated[
        _Tokens | None,
        _about(
            "Context length, in tokens. Models trained on a shorter context use that length.",
            "Model",
            "load",
            unset="the most that fits comfortably, up to 16384, or 32768 where that stays quick",
        ),
    ] = None
    draft: Annotated[
        _Name | None,
        _about(
            "Speculative decoding: auto (layers of the model itself, MTP, or the draft model that the "
            "catalogue names, if it is on this machine; whichever fits, and n-grams of the conversation), "
            "none, mtp, ngram (only n-grams), or the name or path of a draft model.",
            "Model",
            "load",
            unset="auto",
        ),
    ] = None
    backend: Annotated[
        Backend | None,
        _about(
            "The backend, for models that are available for both: llama.cpp (GGUF files, on all systems) "
            "or mlx (MLX models, for Macs with Apple Silicon; on Linux, MLX runs slowly on the CPU).",
            "Model",
            "load",
            unset="llama.cpp; on Apple Silicon, whichever suits the model better",
        ),
    ] = None
    adapters: Annotated[
        tuple[_Name, ...],
        _about(
            "LoRA adapters to apply to the models that they fit: a GGUF file, a folder saved by PEFT, or a "
            "name of `edgechat list`; with a scale behind a colon if it is not 1.",
            "Model",
            "load",
        ),
    ] = ()
    embedding_model: Annotated[
        _Name | None,
        _about(
            "The model with which documents are searched by meaning: a name shown by `edgechat list`, or the "
            "path of a GGUF file.",
            "Model",
            "load",
            unset="the first on this machine in the order of the catalogue; without one, by words alone",
        ),
    ] = None
    reranking_model: Annotated[
        _Name | None,
        _about(
            "The model that ranks the passages found in documents anew, reading each with the question: a "
            "name shown by `edgechat list`, or the path of a GGUF file. On a CPU, that takes seconds.",
            "Model",
            "load",
            unset="none",
        ),
    ] = None
    system: Annotated[
        _System | None, _about("The system prompt of new chats.", "Conversation", "new chat", unset="none")
    ] = None
    think: Annotated[
        bool | None,
        _about(
            "Whether a model that can think first does so. Thinking takes long on slow machines.",
            "Conversation",
            "now",
            unset="the model's own behaviour",
        ),
    ] = None
    overflow: Annotated[
        Literal["window", "error"],
        _about(
            "What happens when a conversation outgrows the context: window leaves out its oldest turns "
            "(the system prompt and the first turn stay); error refuses the question.",
            "Conversation",
            "now",
        ),
    ] = "window"
    tool_rounds: Annotated[
        _Rounds,
        _about(
            "How often one answer may call tools and go on with their results; then it ends, and can be "
            "continued.",
            "Conversation",
            "now",
        ),
    ] = 16
    titles: Annotated[
        bool,
        _about("Let the model title a conversation in idle time.", "Conversation", "now"),
    ] = True
    sampling: SamplingDefaults = SamplingDefaults()
    """Overrides the sampling parameters that the catalogue recommends for a model."""
    theme: Annotated[
        Theme,
        _about(
            "Colours: terminal uses the terminal's own. The environment variable NO_COLOR takes precedence.",
            "Appearance",
            "now",
        ),
    ] = "terminal"
    pictures: Annotated[
        PictureMode,
        _about(
            "How images in chats are drawn: auto (sharp in Kitty and Ghostty, else in the colours of the "
            "terminal's cells), kitty (sharp in any terminal that answers to Kitty's graphics protocol; it "
            "must show unicode placeholders), or blocks (always in the colours of the cells).",
            "Appearance",
            "now",
        ),
    ] = "auto"
    notify: Annotated[
        bool,
        _about(
            "Tell when a long answer ends while the terminal does not have the focus, by a message of the "
            "desktop or the terminal's bell.",
            "Appearance",
            "now",
        ),
    ] = True
    screen_reader: Annotated[
        bool,
        _about("Chat line by line, in plain sentences, instead of opening the app.", "Appearance", "start"),
    ] = False
    threads: Annotated[
        _Threads | None,
        _about("Threads that the model uses.", "Machine", "load", unset="one for each performance core"),
    ] = None
    attention: Annotated[
        AttentionWish,
        _about(
            "How chat models in GGUF attend to the conversation: auto (whichever was measured to be faster "
            "here for the model's heads, if there is memory for it), flash (takes the least memory) or plain "
            "(often faster on a CPU when conversations grow long; the KV cache is then never in 8 bits).",
            "Machine",
            "load",
        ),
    ] = "auto"
    offline: Annotated[
        bool,
        _about(
            "Never use the network; use only local models and stored information about the hub.",
            "Machine",
            "now",
        ),
    ] = False
    rpc: Annotated[
        tuple[str, ...],
        _about(
            'Servers of llama.cpp\'s RPC backend on this machine ("127.0.0.1:50052"), whose devices may '
            "take layers. Servers on other machines are refused, because the protocol has no "
            "authentication.",
            "Machine",
            "load",
        ),
    ] = ()
    workers: Annotated[
        tuple[str, ...],
        _about(
            'Machines that lend their memory to models ("ssh://user@gpu-box"): edgechat must be installed '
            "there, and ssh must connect without asking for a password.",
            "Machine",
            "load",
        ),
    ] = ()
    idle_minutes: Annotated[
        _Minutes,
        _about(
            "Minutes without a request after which the model is unloaded; 0 keeps it loaded.",
            "Machine",
            "load",
        ),
    ] = 10
    settle: Annotated[
        bool, _about("Compute in idle time what the next question will begin with.", "Machine", "load")
    ] = True
    settle_on_battery: Annotated[bool, _about("Do so on battery power too.", "Machine", "load")] = True
    state_gib: Annotated[
        _GiB | None,
        _about(
            "GiB of disk for saved KV state, with which chats continue at once; 0 saves none.",
            "Machine",
            "load",
            unset="4, or a tenth of the free space if that is less",
        ),
    ] = None
    presets: Annotated[
        dict[str, Preset],
        _about("Named sets of system prompt, think, sampling and LoRA adapters.", "Presets", "new chat"),
    ] = {}
    prompts: Annotated[
        dict[str, _Prompt],
        _about(
            "Saved prompts for /prompt NAME. What is in braces, as {language}, is filled in before sending.",
            "Prompts",
            "now",
        ),
    ] = {}
    remotes: Annotated[
        dict[str, RemoteServer],
        _about(
            "Servers whose models answer beside the local ones, as NAME/MODEL: url, key or key_env (the "
            "environment variable that has it), and kind, if it is not to be found out.",
            "Remotes",
            "load",
        ),
    ] = {}
    engines: Annotated[
        dict[EngineName, EngineProgram],
        _about(
            "Programs that edgechat starts to run a model (--engine NAME): command, where it is not found by "
            "its name; args, with which its command line ends; env, the names of further environment "
            "variables that it is to have.",
            "Engines",
            "load",
        ),
    ] = {}

    @property
    def state_bytes(self) -> int | None:
        """Maximum disk space for saved KV states, in bytes; None lets edgechat choose a limit."""
        return None if self.state_gib is None else int(self.state_gib * 2**30)
