"""The commands around servers: tools (`mcp`), models elsewhere (`remote`), and agents that use ours (`launch`)."""
