"""The call formats of the families, and which one a chat template speaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from edgechat.engine.tool_calls import call_parsing
from edgechat.engine.tool_calls.call_parsing import Kinds, ParsedCall

_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Format:
    """What a call looks like: a mark, perhaps a header, a body, and what may stand before the next one."""

    name: str
    signs: tuple[str, ...]
    """A template with all of these is of a family that writes calls this way ..."""
    read: Callable[[str, str, Kinds], ParsedCall | None] = call_parsing.parse_named
    """Parses header and body; None if they are no call."""
    head: Callable[[str, str, Kinds], ParsedCall | None] = call_parsing.parse_named_head
    """Parses a call whose body is incomplete, as far as it is written; None if it may be none."""
    streams: bool = True
    """The arguments are handed on piece by piece; else complete, unless the call is cut short."""
    opens: tuple[str, ...] = ()
    """Marks that begin a call wherever they stand in an answer."""
    first: tuple[str, ...] = ()
    """What begins one only where the answer does; part of the header or body."""
    header_end: str = ""
    """'': there is no header."""
    body_end: str = ""
    """What ends the body, as a pattern; '': a body is a JSON object, which ends by itself."""
    between: str = _SPACE
    """Characters before a body, and after it."""
    close: str = ""
    """The mark behind a call."""
    ends: tuple[str, ...] = ()
    """Marks that end the reply."""
    message_end: str = ""
    """The mark behind one message of a reply that may have several."""
    skip: tuple[str, ...] = ()
    """What may precede an answer, beside the skipped marks of thinking."""
    inside: tuple[str, ...] = ()
    """Further marks, inside of headers and bodies."""
    unless: str = ""
    """... and this is not."""
    several: bool = False
    """Further bodies may follow the first one."""
    single: bool = False
    """The template renders one call in a message, so that several become several messages."""
    before: str = ""
    """The template's key for what a message says before its calls, where `content` is not that."""
    short_ids: bool = False
    """The template wants ids of nine letters or digits."""
    unmarked: bool = False
    """A call is recognized only by its body, which names a tool and has arguments."""
    told: bool = False
    """The template does not support tools: a message tells the model about them and the format."""

    @property
    def marks(self) -> tuple[str, ...]:
        """All texts that may hold control tokens."""
        others = (self.header_end, self.close, self.message_end, *self.inside, *self.skip)
        return tuple(mark for mark in (*self.opens, *self.first, *self.ends, *others) if mark)


GENERIC = Format("generic", (), opens=("<tool_call>",), close="</tool_call>", told=True)

BARE = Format("bare", (), between=_SPACE + "[],;", several=True, unmarked=True)
"""A call that models write where they forget the marks: JSON at the beginning of an answer ..."""
FENCED = replace(BARE, name="fenced", close="```")
"""... or of a fenced block of code ..."""
TAGGED = {
    f"<{tag}>": replace(BARE, name=tag, close=f"</{tag}>")
    for tag in ("tools", "function_call", "tool", "response", "json")
}
"""... or behind a mark of another family."""

FORMATS = (
    Format(
        "harmony",
        ("<|call|>", "<|channel|>commentary"),
        call_parsing.parse_addressed,
        call_parsing.parse_addressed_head,
        first=("<|channel|>commentary to=", "<|channel|>analysis to=", "to=functions."),
        header_end="<|message|>",
        ends=("<|call|>", "<|return|>"),
        message_end="<|end|>",
        skip=("<|channel|>commentary<|message|>",),
        inside=("<|constrain|>", "<|start|>"),
        single=True,
        before="thinking",
    ),
    Format(
        "gemma",
        ("<|tool_call>", "<tool_call|>"),
        call_parsing.parse_gemma,
        call_parsing.parse_gemma_head,
        streams=False,
        opens=("<|tool_call>",),
        body_end=r"<tool_call\|>",
        ends=("<|tool_response>",),
        inside=("<tool_call|>", call_parsing.QUOTE),
        before="reasoning_content",
    ),
    Format(
        "xml",
        ("<tool_call>", "<function=", "<parameter="),
        call_parsing.parse_xml,
        call_parsing.parse_xml_head,
        streams=False,
        opens=("<tool_call>",),
        body_end=r"</function>\s{0,16}</tool_call>",
    ),
    replace(GENERIC, name="hermes", signs=("<tool_call>",), unless="<arg_key>", told=False),
    Format(
        "args",
        ("[TOOL_CALLS]", "[ARGS]"),
        call_parsing.parse_args,
        call_parsing.parse_args_head,
        opens=("[TOOL_CALLS]",),
        header_end="[ARGS]",
        inside=("[CALL_ID]",),
        short_ids=True,
    ),
    Format(
        "mistral",
        ("[TOOL_CALLS]",),
        streams=False,  # its id comes last
        opens=("[TOOL_CALLS]",),
        between=_SPACE + "[],",
        several=True,
        short_ids=True,
    ),
    Format(
        "llama",
        ("ipython", '"parameters": '),
        opens=("<|python_tag|>",),
        first=("{",),
        between=_SPACE + ";",
        several=True,
        ends=("<|eom_id|>",),
        single=True,
    ),
)


def format_of(template: str) -> Format:
    """Return the way in which the models of a chat template call tools."""
    if "tools" not in template or "tool_calls" not in template:
        return GENERIC
    for family in FORMATS:
        excluded = family.unless and family.unless in template
        if not excluded and all(sign in template for sign in family.signs):
            return family
    return GENERIC
