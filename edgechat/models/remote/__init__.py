"""Models on other servers: `[remotes.NAME]` in settings.toml makes a server's models available as NAME/MODEL.

`client` has the connection and all its limits, `discovery` finds out what a server is and which models it
has, `listing` asks several servers at once, and `measured` remembers how fast they were. Start with
`discovery`.
"""
