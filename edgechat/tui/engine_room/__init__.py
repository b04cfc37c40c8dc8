"""The engine room: a panel that shows what the engine does and knows."""
