"""Fields in which text is edited, whatever text that is: control characters are shown and not obeyed."""
