"""The commands as click sees them: arguments, options and help; each calls its module in `cli/commands`."""
