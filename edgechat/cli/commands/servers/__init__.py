"""The commands around servers: tools (`mcp`), models elsewhere (`remote`), agents that use ours (`launch`)."""
