"""Models of Ollama: where they are, and what belongs to each beside its weights."""
