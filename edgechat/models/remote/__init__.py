"""Models on other servers, named in settings.toml: from `[remotes.NAME]` to what answers there as NAME/MODEL.

`client` has the connection and all its bounds, `discovery` finds out what a server is and which models it
has, `listing` asks several at once, `measured` remembers how fast they were. Begin with `discovery`.
"""
