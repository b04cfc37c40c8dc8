"""The commands for servers of others: tool servers (`mcp`), and servers of models (`remote`)."""
