"""The line of keys: what it shows at each width, and in which order."""

import pytest

from edgechat.tui.widgets.key_bar import KeyBar

pytestmark = pytest.mark.slow


async def keys_at(scene, width):
    """Return the descriptions of the keys that are shown beside an empty chat."""
    async with scene.loaded(size=(width, 30)) as pilot:
        bar = pilot.app.screen.query_one(KeyBar)
        line = bar.render_line(0).text.rstrip()
        assert len(line) <= bar.size.width
        keys = [key.strip() for group in line.split("│") for key in group.split("  ")]
        return [key.partition(" ")[2] for key in keys if key]


@pytest.mark.parametrize("width", [30, 60, 100, 160, 240])
async def test_the_most_useful_keys_stay_and_quit_is_last(scene, width):
    keys = await keys_at(scene, width)
    assert keys[0] == "Send"
    assert "Help" in keys[-2:]
    assert "Quit" not in keys[:-1]
    useful = ("New chat", "Models", "Commands")
    assert len([key for key in useful if key in keys]) == (0 if width == 30 else 2 if width == 60 else 3)


async def test_what_has_the_focus_comes_before_the_screen_and_the_app(scene):
    keys = await keys_at(scene, 240)
    order = [keys.index(key) for key in ("Send", "Turns", "New chat", "Chats", "Models", "Commands", "Help")]
    assert order == sorted(order)
