"""The commands around servers: tools (`mcp`), models elsewhere (`remote`), and agents (`launch`)."""
