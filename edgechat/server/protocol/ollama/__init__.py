"""Ollama's API: POST /api/chat, /api/generate, /api/embed, and what lists and shows models.

request.py      the bodies of chat and generate
answer.py       from the engine's events to their answers, whole or line by line
models.py       the models: tags, show, ps; and embeddings
"""
