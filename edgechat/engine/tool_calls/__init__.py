r"""How models call tools: each family has its own way to write that down.

    format    models                            a call, as the model writes it
    hermes    Hermes, Qwen2.5, Qwen3            <tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>
    xml       Qwen3-Coder, Qwen3.5 and later    <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE…
    llama     Llama 3.1, 3.2, 3.3               {"name": …, "parameters": {…}}, perhaps after <|python_tag|>
    mistral   Mistral 7B v0.3, Nemo, Small 3.1  [TOOL_CALLS][{"name": …, "arguments": {…}, "id": …}, …]
    args      Mistral Small 3.2, Ministral 3,   [TOOL_CALLS]NAME[ARGS]{…}, perhaps with [CALL_ID]ID
              Devstral, Magistral
    gemma     Gemma 4                           <|tool_call>call:NAME{key:<|"|>text<|"|>,…}<tool_call|>
    harmony   gpt-oss                           <|channel|>commentary to=functions.NAME …<|message|>{…}
    generic   all others                        as hermes; a system message tells them the tools, and how

Which one a model uses is read off its chat template. Some forget the marks (Qwen2.5-Coder always does): what
they write then, JSON in a fenced block of code, bare at the beginning of an answer or behind another family's
mark, is a call where it names one of the request's tools and arguments follow.
"""
