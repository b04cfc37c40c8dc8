"""The tools that are a part of edgechat. Each group is a ToolServer; see `group.py` first."""
