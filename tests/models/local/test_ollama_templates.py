"""Ollama's templates are recognized by their marks, and ours for each format write turns as it has them."""

# ruff: noqa: E501  (what templates write is one line)

import pytest

from edgechat.engine.prompt.template import ChatTemplate
from edgechat.engine.types import Message
from edgechat.models.local.ollama_templates import recognized
from tests.engine.prompt.test_prompts import Here

CHAT = (
    Message("system", "Be brief."),
    Message("user", "One?"),
    Message("assistant", "Yes."),
    Message("user", "Two?"),
)
# What such templates look like, shortened, and what is written.
FORMATS = {
    "ChatML": (
        "{{- if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}<|im_start|>user\n{{ .Prompt }}",
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\n"
        "Yes.<|im_end|>\n<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n",
    ),
    "Phi-4": (
        "<|im_start|>{{ .Role }}<|im_sep|>{{ .Content }}<|im_end|>",
        "<|im_start|>system<|im_sep|>Be brief.<|im_end|><|im_start|>user<|im_sep|>One?<|im_end|>"
        "<|im_start|>assistant<|im_sep|>Yes.<|im_end|><|im_start|>user<|im_sep|>Two?<|im_end|>"
        "<|im_start|>assistant<|im_sep|>",
    ),
    "Llama 3": (
        "<|start_header_id|>user<|end_header_id|>\n\n{{ .Prompt }}<|eot_id|>",
        "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>"
        "\n\nOne?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nYes.<|eot_id|><|start_header_id|>user"
        "<|end_header_id|>\n\nTwo?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "Gemma": (
        "<start_of_turn>user\n{{ if .System }}{{ .System }} {{ end }}{{ .Prompt }}<end_of_turn>",
        "<start_of_turn>user\nBe brief.\n\nOne?<end_of_turn>\n<start_of_turn>model\nYes.<end_of_turn>\n"
        "<start_of_turn>user\nTwo?<end_of_turn>\n<start_of_turn>model\n",
    ),
    "Granite": (
        "<|start_of_role|>system<|end_of_role|>{{ .System }}<|end_of_text|>",
        "<|start_of_role|>system<|end_of_role|>Be brief.<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>One?"
        "<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>Yes.<|end_of_text|>\n<|start_of_role|>user"
        "<|end_of_role|>Two?<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    ),
    "Command R": (
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Be brief.<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|>"
        "<|USER_TOKEN|>One?<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Yes.<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Two?<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    ),
    "DeepSeek": (
        "{{ .System }}<\uff5cUser\uff5c>{{ .Prompt }}<\uff5cAssistant\uff5c>",
        "Be brief.<\uff5cUser\uff5c>One?<\uff5cAssistant\uff5c>Yes.<\uff5cend\u2581of\u2581sentence\uff5c>"
        "<\uff5cUser\uff5c>Two?<\uff5cAssistant\uff5c>",
    ),
    "Phi-3": (
        "<|user|>\n{{ .Prompt }}<|end|>\n<|assistant|>",
        "<|system|>\nBe brief.<|end|>\n<|user|>\nOne?<|end|>\n<|assistant|>\nYes.<|end|>\n<|user|>\nTwo?<|end|>\n"
        "<|assistant|>\n",
    ),
    "Zephyr": (
        "<|user|>\n{{ .Prompt }}</s>\n<|assistant|>",
        "<|system|>\nBe brief.</s>\n<|user|>\nOne?</s>\n<|assistant|>\nYes.</s>\n<|user|>\nTwo?</s>\n<|assistant|>\n",
    ),
    "Llama 2": (
        "[INST] <<SYS>>{{ .System }}<</SYS>>\n\n{{ .Prompt }} [/INST]",
        "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nOne? [/INST] Yes.</s>[INST] Two? [/INST]",
    ),
    "Mistral": (
        "[INST] {{ .System }} {{ .Prompt }}[/INST]",
        "[INST] Be brief.\n\nOne? [/INST] Yes.</s>[INST] Two? [/INST]",
    ),
    "Vicuna": (
        "{{ .System }}\nUSER: {{ .Prompt }}\nASSISTANT:",
        "Be brief.\n\nUSER: One?\nASSISTANT: Yes.</s>\nUSER: Two?\nASSISTANT:",
    ),
    "Alpaca": (
        "### Instruction:\n{{ .Prompt }}\n\n### Response:",
        "Be brief.\n\n### Instruction:\nOne?\n\n### Response:\nYes.\n\n### Instruction:\nTwo?\n\n### Response:\n",
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_known_format_is_recognized_and_written(name):
    template, written = FORMATS[name]
    found = recognized(template)
    assert found.name == name
    assert ChatTemplate(found.source, process=Here()).render(CHAT) == written.removesuffix("\n") + (
        "\n" if written.endswith("\n") else ""
    )


@pytest.mark.parametrize("template", ["", "{{ .Prompt }}", "<|im_start|>", "<role>{{ .System }}</role>"])
def test_other_templates_are_not_guessed(template):
    assert recognized(template) is None
