"""Engine room: a panel that shows the state of the engine."""
