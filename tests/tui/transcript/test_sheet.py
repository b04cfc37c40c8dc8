"""What is copied of what is shown: by selection, and by a click on code's "copy"."""

import pytest
from textual.app import App
from textual.geometry import Offset
from textual.selection import SELECT_ALL, Selection

from edgechat.tui.transcript.sheet import Sheet
from edgechat.tui.transcript.turns import ReplyPiece
from tests.tui.driving import driven

pytestmark = pytest.mark.slow

TEXT = """First.

```python
short = 1
long = "a line that does not fit into the width of this app at all, however it is turned"
```

- item
"""
CODE = TEXT.split("```")[1].removeprefix("python\n")


class ReplyApp(App[None]):
    def __init__(self, text):
        super().__init__()
        self.piece = ReplyPiece(text)
        self.copied = []

    def compose(self):
        yield self.piece.mount()

    def on_sheet_code_copied(self, event):
        self.copied.append(event.code)


def selected(sheet, selection):
    found = sheet.get_selection(selection)
    assert found is not None
    return found[0]


async def test_a_selection_has_no_marks_and_long_lines_of_code_in_one_piece():
    app = ReplyApp(TEXT)
    async with app.run_test(size=(40, 20)):
        sheet = app.query_one(Sheet)
        assert selected(sheet, SELECT_ALL) == f"First.\n\n{CODE}\nitem"
        # From the middle of the first line of code to that of the second one's rest.
        part = selected(sheet, Selection(Offset(4, 3), Offset(6, 5)))
        start = CODE.index("long")
        assert part == CODE[2 : start + 37 + 4]


async def test_a_click_copies_the_code():
    app = ReplyApp(TEXT)
    async with driven(app, size=(40, 20)) as pilot:
        sheet = app.query_one(Sheet)
        heading = next(y for y, line in enumerate(sheet._lines) if line.code)
        top = sheet.content_region.y + heading
        await pilot.click(offset=(2, top))
        await pilot.click(offset=(sheet.content_region.right - 2, top + 1))
        assert app.copied == []
        await pilot.click(offset=(sheet.content_region.right - 2, top))
        assert app.copied == [CODE]


async def test_code_that_grows_is_copied_as_it_is_by_then():
    app = ReplyApp("```\none\n")
    async with driven(app, size=(40, 20)) as pilot:
        app.piece.append("two\n")
        await pilot.pause()
        sheet = app.query_one(Sheet)
        await pilot.click(offset=(sheet.content_region.right - 2, sheet.content_region.y))
        assert app.copied == ["one\ntwo\n"]
