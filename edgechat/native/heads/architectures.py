"""What llama.cpp's graphs can do, by architecture, as it spells them: it aborts where one is asked for more.

Read in its src/models/*.cpp. Nothing native is imported here.
"""

ONE_LAYER = {
    "bailingmoe3",
    "cohere2moe",
    "deepseek2",
    "deepseek32",
    "deepseek4",
    "glm-dsa",
    "glm4moe",
    "nemotron_h_moe",
    "qwen35",
    "qwen35moe",
    "qwen3next",
}
"""They can draft with a layer of their own (LLM_GRAPH_TYPE_DECODER_MTP), and with no more than one."""
CHAINED = {"hy_v3", "mimo2", "step35"}
"""They can with any number, each of which predicts one token further than the one before."""
HANDS_OUT_ALL = ONE_LAYER - {"deepseek4", "qwen3next"}
"""Their heads hand out the hidden states of all tokens of a call, the others of those alone whose logits are
wanted. To ask one for what another gives returns wrong rows, or aborts."""
HANDS_OUT_INPUTS = {
    "bailingmoe3",
    "gemma4",
    "gpt-oss",
    "lfm2",
    "lfm2moe",
    "llama",
    "mimo2",
    "minimax-m2",
    "nemotron_h",
    "nemotron_h_moe",
    "qwen3",
    "qwen35",
    "qwen35moe",
    "qwen3moe",
    "qwen3next",
}
"""They hand out what goes into a layer, which EAGLE-3 reads."""
EAGLE_LAYERS = 3
"""Layers of the target that EAGLE-3 reads."""
