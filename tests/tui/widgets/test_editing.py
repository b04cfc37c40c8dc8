"""Fields take the keys of one burst in their order."""

import pytest
from textual import events
from textual.app import App

from edgechat.tui.widgets.fields import Area, LineField
from tests.tui.driving import driven

pytestmark = pytest.mark.slow


class Form(App[None]):
    """A field of each kind."""

    def compose(self):
        yield LineField()
        yield Area()


def text_in(field):
    return field.value if isinstance(field, LineField) else field.text


async def burst(pilot, field, *keys):
    """Hand a field keys before it has handled any."""
    for key in keys:
        field._forward_event(events.Key(key, key if len(key) == 1 else None))
    await pilot.pause()


@pytest.mark.parametrize("kind", [LineField, Area])
@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ([*"abcdefghi", *["backspace"] * 9, *"xyz"], "xyz"),
        ([*"ac", "left", *"b"], "abc"),
        ([*"bc", "home", *"a", "end", *"d"], "abcd"),
        ([*"one two", "ctrl+w", *"three"], "one three"),
        ([*"gone", "ctrl+u", *"here"], "here"),
        ([*"ab", "home", "delete", *"x"], "xb"),
    ],
)
async def test_editing_keys_are_not_overtaken(kind, keys, text):
    async with driven(Form()) as pilot:
        field = pilot.app.query_one(kind)
        field.focus()
        await pilot.pause()
        await burst(pilot, field, *keys)
        assert text_in(field) == text


async def test_a_key_that_the_field_does_not_bind_goes_on_to_the_screen():
    async with driven(Form()) as pilot:
        pilot.app.query_one(LineField).focus()
        await pilot.press("tab")
        assert pilot.app.focused is pilot.app.query_one(Area)
