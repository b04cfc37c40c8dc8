"""The commands as typer sees them: arguments, options and help; each calls its module in `cli/commands`."""
