"""The form with the system prompt and the parameters of one conversation."""

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("theme", ["terminal", "dark"])
async def test_a_value_that_is_not_allowed_stays_in_sight_with_the_reason(scene, theme):
    async with scene.loaded(size=(100, 40), theme=theme) as pilot:
        await pilot.press("f4", see="frequency penalty")

        def row(label):
            return next(line for line in pilot.text.splitlines() if label in line)

        await pilot.press("tab", *"97", see="temperature must be a number, 0 to 5.")
        assert "97" in row("temperature ")
        await pilot.press("tab", *"x")
        assert "97" in row("temperature ")
        await pilot.press("shift+tab", "backspace", "backspace", *"0.5")
        await pilot.see("top k must be a whole number, 0 or more.")
        await pilot.press("tab", "backspace", gone="must be")
        assert "0.5" in row("temperature ")
