"""What the model is asked while ways of decoding are compared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A prompt, and what kind of text answers it."""

    name: str
    prompt: str


_TEXT = (
    "The ferry leaves the harbour at seven and reaches the island before noon. On the way it passes the old "
    "lighthouse, where gulls nest in the broken windows, and the sandbank on which seals lie when the tide "
    "is low. Tickets are sold on board. Dogs travel free, bicycles cost two crowns, and children under six "
    "need no ticket at all. The last boat back leaves at nine in the evening, in summer half an hour later."
)

TASKS = (
    BenchPrompt("prose", "Explain how a bicycle stays upright while it is moving, to a curious child."),
    BenchPrompt(
        "editing",
        f"Repeat the following text word for word, but write 'train' instead of 'ferry'.\n\n{_TEXT}",
    ),
)
