"""The form with the system prompt and the parameters of one conversation."""

import pytest

from tests.fakes import FakeEngine
from tests.tui.driving import app_with, text_of, until

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("theme", ["terminal", "dark"])
async def test_a_value_that_is_not_allowed_stays_in_sight_with_the_reason(tmp_path, theme):
    app = app_with(FakeEngine(), tmp_path / "chats.db", theme=theme)
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "it is." in text_of(pilot))
        await pilot.press("f4")
        await until(pilot, lambda: "frequency penalty" in text_of(pilot))

        def row(label):
            return next(line for line in text_of(pilot).splitlines() if label in line)

        await pilot.press("tab", *"97")
        await until(pilot, lambda: "temperature has to be a number, 0 to 5." in text_of(pilot))
        assert "97" in row("temperature ")
        await pilot.press("tab", *"x")
        assert "97" in row("temperature ")
        await pilot.press("shift+tab", "backspace", "backspace", *"0.5")
        await until(pilot, lambda: "top k has to be a whole number, 0 or more." in text_of(pilot))
        await pilot.press("tab", "backspace")
        await until(pilot, lambda: "has to be" not in text_of(pilot))
        assert "0.5" in row("temperature ")
