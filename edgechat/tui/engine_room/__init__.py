"""Engine room: a panel that shows the engine's state."""
