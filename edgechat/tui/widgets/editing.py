"""Editing keys of text fields, in the order in which they come.

A field handles a letter itself, whereas Textual runs the binding of a key only when the key has bubbled up to
the app. Of keys that come in one burst, later letters would overtake a Backspace.
"""

from __future__ import annotations

from textual import events
from textual.widget import Widget


async def run_own_binding(field: Widget, event: events.Key) -> bool:
    """Run at once what a field binds to a key; return whether it binds anything that is enabled."""
    if event.is_printable:
        return False
    for binding in field._bindings.key_to_bindings.get(event.key, ()):
        if not binding.priority and await field.app.run_action(binding.action, field):
            event.stop()
            event.prevent_default()
            return True
    return False
