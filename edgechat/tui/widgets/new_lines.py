"""The note at the foot of a transcript that text was added below what is being read."""

from __future__ import annotations

from textual.message import Message
from textual.widgets import Static


class NewLines(Static):
    """How many lines are new below; a click goes there. Hidden if there are none."""

    DEFAULT_CSS = """
    NewLines {
        width: auto; height: 1; padding: 0 1; display: none; color: $primary;
        &:hover { text-style: underline; }
        &.-some { display: block; }
    }
    """

    class Wanted(Message):
        """The new text is to be shown."""

    def show(self, lines: int) -> None:
        """Show how many lines are new."""
        self.set_class(lines > 0, "-some")
        self.update(f"↓ {lines:,} new line{'s' * (lines != 1)}")

    def on_click(self) -> None:
        self.post_message(self.Wanted())
