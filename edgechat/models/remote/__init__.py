"""Models on other servers: `[remotes.NAME]` in settings.toml makes a server's models available as NAME/MODEL.

`client` handles the connection and enforces all limits. `discovery` finds out what kind of server it is and
which models it has. `listing` queries several servers at once, and `measured` remembers how fast their models
were. Start with `discovery`.
"""
