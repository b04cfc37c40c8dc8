"""Chat formats of Ollama's templates, recognized by the markers in them.

The templates are written in Go's template language, which is not parsed here. Each recognized format has a
Jinja template of our own. It supports only turns, so tools are described in text.
"""

from __future__ import annotations

from typing import NamedTuple


class ChatFormat(NamedTuple):
    """A chat format: its common name, the markers in its templates, and our Jinja source."""

    name: str
    signs: tuple[str, ...]
    source: str


def _turns(system: str, user: str, assistant: str, *, ask: str) -> str:
    """Return the source for a format that wraps each message. X stands for the message's text."""
    roles = (("system", system), ("user", user), ("assistant", assistant))
    words = [
        f"{{% {'elif' if at else 'if'} m.role == '{role}' %}}{text.replace('X', '{{ m.content }}')}"
        for at, (role, text) in enumerate(roles)
    ]
    return (
        f"{{% for m in messages %}}{''.join(words)}{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{ask}{{% endif %}}"
    )


def _named(role: str, text: str, *, ask: str) -> str:
    """Return the source for a format in which a marker before each message names the role."""
    return (
        f"{{% for m in messages %}}{role}{text}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{ask}{{% endif %}}"
    )


# Puts the system prompt before the first user message.
_MERGED = (
    "{% set ns = namespace(rules='') %}{% for m in messages %}"
    "{% if m.role == 'system' %}{% set ns.rules = ns.rules + m.content + '\n\n' %}"
    "{% elif m.role == 'user' %}USER{% set ns.rules = '' %}{% else %}ASSISTANT{% endif %}{% endfor %}"
)
_INST = _MERGED.replace("ASSISTANT", " {{ m.content }}</s>")

_FORMATS = (
    ChatFormat(
        "Phi-4",
        ("<|im_start|>", "<|im_sep|>"),
        _named(
            "<|im_start|>{{ m.role }}<|im_sep|>",
            "{{ m.content }}<|im_end|>",
            ask="<|im_start|>assistant<|im_sep|>",
        ),
    ),
    ChatFormat(
        "ChatML",
        ("<|im_start|>", "<|im_end|>"),
        _named("<|im_start|>{{ m.role }}\n", "{{ m.content }}<|im_end|>\n", ask="<|im_start|>assistant\n"),
    ),
    ChatFormat(
        "Llama 3",
        ("<|start_header_id|>", "<|eot_id|>"),
        _named(
            "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n",
            "{{ m.content }}<|eot_id|>",
            ask="<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
    ),
    ChatFormat(
        "Gemma",
        ("<start_of_turn>", "<end_of_turn>"),
        _MERGED.replace("USER", "<start_of_turn>user\n{{ ns.rules }}{{ m.content }}<end_of_turn>\n").replace(
            "ASSISTANT", "<start_of_turn>model\n{{ m.content }}<end_of_turn>\n"
        )
        + "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    ),
    ChatFormat(
        "Granite",
        ("<|start_of_role|>", "<|end_of_role|>"),
        _named(
            "<|start_of_role|>{{ m.role }}<|end_of_role|>",
            "{{ m.content }}<|end_of_text|>\n",
            ask="<|start_of_role|>assistant<|end_of_role|>",
        ),
    ),
    ChatFormat(
        "Command R",
        ("<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>"),
        _turns(
            "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>X<|END_OF_TURN_TOKEN|>",
            "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>X<|END_OF_TURN_TOKEN|>",
            "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>X<|END_OF_TURN_TOKEN|>",
            ask="<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        ),
    ),
    ChatFormat(
        "DeepSeek",
        ("<｜User｜>", "<｜Assistant｜>"),
        _turns(
            "X",
            "<｜User｜>X",
            "<｜Assistant｜>X<｜end▁of▁sentence｜>",
            ask="<｜Assistant｜>",
        ),
    ),
    ChatFormat(
        "Phi-3",
        ("<|user|>", "<|assistant|>", "<|end|>"),
        _named("<|{{ m.role }}|>\n", "{{ m.content }}<|end|>\n", ask="<|assistant|>\n"),
    ),
    ChatFormat(
        "Zephyr",
        ("<|user|>", "<|assistant|>"),
        _named("<|{{ m.role }}|>\n", "{{ m.content }}</s>\n", ask="<|assistant|>\n"),
    ),
    ChatFormat(
        "Llama 2",
        ("[INST]", "<<SYS>>"),
        _INST.replace(
            "USER",
            "[INST] {% if ns.rules %}<<SYS>>\n{{ ns.rules | trim }}\n<</SYS>>\n\n{% endif %}"
            "{{ m.content }} [/INST]",
        ),
    ),
    ChatFormat("Mistral", ("[INST]",), _INST.replace("USER", "[INST] {{ ns.rules }}{{ m.content }} [/INST]")),
    ChatFormat(
        "Vicuna",
        ("USER:", "ASSISTANT:"),
        _turns("X\n\n", "USER: X\n", "ASSISTANT: X</s>\n", ask="ASSISTANT:"),
    ),
    ChatFormat(
        "Alpaca",
        ("### Instruction:", "### Response:"),
        _turns("X\n\n", "### Instruction:\nX\n\n", "### Response:\nX\n\n", ask="### Response:\n"),
    ),
)


def recognized(template: str) -> ChatFormat | None:
    """Return the format of a Go template, or None if it is unknown."""
    return next((one for one in _FORMATS if all(sign in template for sign in one.signs)), None)
