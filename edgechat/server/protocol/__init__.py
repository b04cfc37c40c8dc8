"""Protocols: OpenAI, Anthropic and Ollama requests and answers as Structs, which /openapi.json describes.

A body is converted to a ChatRequest; `answers.Answers` encodes the engine's events as bytes. No code in lower
layers knows about protocols.

body.py               decodes bytes into a Struct, or refuses them; finds fields that have no effect
fields.py             fields that several protocols share
answers.py            what all answers have in common
openai_chat.py        /v1/chat/completions: the body; openai_answers.py: the answer
openai_texts.py       completions, embeddings, reranking, tokens
responses_request.py  /v1/responses: the body; responses_items.py: its input; responses_answer.py: the answer;
responses_store.py: stored responses
anthropic.py          /v1/messages: the body; anthropic_answer.py: the answer
ollama.py             /api/chat, /api/generate, /api/embed
listing.py            models, documents and the state of the server
"""
