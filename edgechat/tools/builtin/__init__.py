"""Built-in tools. Each group is a ToolServer; read `group.py` first."""
