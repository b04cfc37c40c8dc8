"""The line of what goes on: a bar, or the cells of a prompt that is read."""

import pytest
from textual.app import App

from edgechat.tui import theme
from edgechat.tui.widgets.lines import Activity
from tests.tui.driving import driven


class Stage(App[None]):
    def __init__(self):
        super().__init__(ansi_color=True)
        theme.apply(self, "terminal")

    def compose(self):
        yield Activity()


def cells(activity):
    """Return how many characters show what was cached, what was read, and what is to be read."""
    line = activity.render_line(0).text
    return line.count("▒"), line.count("▓"), line.count("·")


@pytest.mark.parametrize("width", [40, 100])
async def test_a_prompt_is_drawn_as_cells(width):
    async with driven(Stage(), size=(width, 4)) as pilot:
        activity = pilot.app.query_one(Activity)
        activity.show("Reading", 0.75, 0.5)
        await pilot.pause()
        cached, read, unread = cells(activity)
        assert cached > read > 2
        assert abs(cached - read - unread) <= 1
        assert "75%" in activity.render_line(0).text
        activity.show("Reading", 0.001, 0.0)
        await pilot.pause()
        assert cells(activity)[:2] == (0, 1)
        activity.show("Reading", 1.0, 0.999)
        await pilot.pause()
        cached, read, unread = cells(activity)
        assert cached > 1
        assert read > 0
        assert unread == 0


async def test_other_work_has_a_plain_bar_or_none():
    async with driven(Stage(), size=(80, 4)) as pilot:
        activity = pilot.app.query_one(Activity)
        activity.show("Loading the model", 0.5)
        await pilot.pause()
        assert "━" in activity.render_line(0).text
        assert cells(activity) == (0, 0, 0)
        activity.show("Writing")
        await pilot.pause()
        assert activity.render_line(0).text.strip().endswith("Writing")
