"""The themes: their contrast by WCAG's formula, and that a running app changes between them."""

from typing import get_args

import pytest
from textual.app import App
from textual.color import Color
from textual.widgets import Input, OptionList, Static, TextArea

from edgechat.settings.fields import Theme as Name
from edgechat.tui import theme
from edgechat.tui.widgets.lists import CursorLine
from tests.tui.driving import driven

TRUE_COLOUR = (theme.DARK, theme.LIGHT, theme.HIGH_CONTRAST)
TONES = ("primary", "secondary", "accent", "warning", "error", "success")
GROUNDS = ("background", "surface", "panel")
RED = 1
_TINT = 1.07
"""The least contrast of two surfaces that are to be told apart."""
_DIM = 0.66  # Textual's


def luminance(color):
    def linear(channel):
        share = channel / 255
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    return 0.2126 * linear(color.r) + 0.7152 * linear(color.g) + 0.0722 * linear(color.b)


def contrast(one, other):
    """Return WCAG 2.2's contrast ratio, 1 to 21."""
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_the_formula_is_wcags():
    assert contrast(Color.parse("#ffffff"), Color.parse("#000000")) == pytest.approx(21)
    assert contrast(Color.parse("#777777"), Color.parse("#ffffff")) == pytest.approx(4.48, abs=0.01)


def pairs(one):
    """Return what text is drawn on, as variables of the theme."""
    text = ("foreground", "text", "text-muted", "text-disabled", *TONES, *(f"text-{tone}" for tone in TONES))
    found = [(name, ground) for name in text for ground in GROUNDS]
    marked = ("foreground", *TONES) if one is theme.HIGH_CONTRAST else ("foreground",)
    found += [(name, "screen-selection-background") for name in marked]
    found += [
        (f"{name}-foreground", f"{name}-background")
        for name in ("block-cursor", "block-cursor-blurred", "input-selection", "input-cursor")
    ]
    found += [("button-color-foreground", tone) for tone in TONES]
    found += [("link-color-hover", "link-background-hover"), ("footer-key-foreground", "footer-background")]
    return [*found, ("screen-selection-foreground", "screen-selection-background")]


@pytest.mark.parametrize("one", TRUE_COLOUR, ids=lambda one: str(one.name))
def test_all_text_can_be_read(one):
    least = 7.0 if one is theme.HIGH_CONTRAST else 4.5
    colours = one.to_color_system().generate()
    found = {pair: contrast(*(Color.parse(colours[name]) for name in pair)) for pair in pairs(one)}
    assert {pair: round(ratio, 2) for pair, ratio in found.items() if ratio < least} == {}


@pytest.mark.parametrize("one", TRUE_COLOUR, ids=lambda one: str(one.name))
def test_dim_text_can_be_read(one):
    """Textual mixes it into the ground."""
    least = 7.0 if one is theme.HIGH_CONTRAST else 4.5
    colours = one.to_color_system().generate()
    for ground in (Color.parse(colours[name]) for name in GROUNDS):
        dim = ground.blend(Color.parse(colours["foreground"]), _DIM)
        assert contrast(dim, ground) >= least


@pytest.mark.parametrize("one", TRUE_COLOUR, ids=lambda one: str(one.name))
def test_borders_and_scroll_bars_can_be_seen(one):
    """WCAG wants 3 to 1 of what tells where the focus is; a border without it is an ornament."""
    colours = one.to_color_system().generate()
    for ground in GROUNDS:
        assert contrast(Color.parse(colours["border"]), Color.parse(colours[ground])) >= 3
    assert contrast(Color.parse(colours["border"]), Color.parse(colours["border-blurred"])) >= 1.4


@pytest.mark.parametrize("one", TRUE_COLOUR, ids=lambda one: str(one.name))
def test_surfaces_are_told_apart(one):
    colours = one.to_color_system().generate()
    page, surface, panel = (Color.parse(colours[ground]) for ground in GROUNDS)
    assert contrast(surface, page) >= _TINT
    assert contrast(panel, surface) >= _TINT
    assert contrast(Color.parse(one.variables["divider"]), surface) >= _TINT
    assert contrast(Color.parse(colours["block-cursor-background"]), surface) >= 3
    assert contrast(Color.parse(colours["block-cursor-blurred-background"]), surface) >= _TINT


@pytest.mark.parametrize("one", [theme.TERMINAL, theme.NO_COLOR], ids=lambda one: str(one.name))
def test_the_terminals_colours_have_no_grounds_of_their_own(one):
    """No palette is known, so no pair of its colours is sure to be legible."""
    colours = one.to_color_system().generate()
    assert {colours[name] for name in ("surface", "panel")} == {"transparent"}
    for name in ("block-cursor", "input-selection", "screen-selection"):
        assert {colours[f"{name}-foreground"], colours[f"{name}-background"]} == {"ansi_default"}
    assert "reverse" in colours["block-cursor-text-style"]


def test_every_theme_defines_what_the_terminals_does():
    for one in (*TRUE_COLOUR, theme.NO_COLOR):
        assert set(theme.TERMINAL.variables) <= set(one.variables), one.name
        generated = one.to_color_system().generate()
        # Two names Textual knows for the terminal's colours alone, one of them misspelt.
        names = set(theme.TERMINAL.to_color_system().generate()) - {"surface-actrive", "background-muted"}
        assert names <= {*generated, *one.variables}, one.name


def test_the_setting_offers_what_there_is():
    assert tuple(theme.THEMES) == get_args(Name)


class Sample(App[None]):
    CSS = theme.STYLES

    def __init__(self):
        super().__init__(ansi_color=True)
        theme.apply(self, "terminal")

    def compose(self):
        yield Static("[$error]words[/] [dim]faint[/]", id="words")
        yield Input("typed")
        yield TextArea("written", id="area")
        yield OptionList("one", "two", "three")
        yield CursorLine("[$error]a colour[/] and none", "plain")


def painted(app, text):
    """Return the style that `text` reaches the terminal with."""
    for y in range(app.size.height):
        for widget in app.screen.query("*"):
            if widget.region.y <= y < widget.region.bottom and not widget.children:
                for part in widget.render_line(y - widget.region.y)._segments:
                    if part.text.strip() == text and part.style is not None:
                        ground = widget.background_colors[1]
                        for one in app._filters:
                            if one.enabled:
                                (part,) = one.apply([part], ground)
                        assert part.style is not None
                        return part.style
    raise AssertionError(f"{text!r} is not on the screen")


@pytest.mark.slow
async def test_a_running_app_changes_its_theme():
    app = Sample()
    async with driven(app) as pilot:
        style = painted(app, "words")
        assert style.color is not None
        assert style.color.number == RED
        for one in TRUE_COLOUR:
            theme.apply(app, one.name)
            await pilot.pause()
            style = painted(app, "words")
            assert style.color is not None
            assert style.color.name == one.to_color_system().generate()["error"].lower()
            assert app.screen.styles.background.hex.lower() == str(one.background)
            assert not painted(app, "faint").dim
        theme.apply(app, "terminal")
        await pilot.pause()
        style = painted(app, "words")
        assert style.color is not None
        assert style.color.number == RED
        assert painted(app, "faint").dim


async def test_an_app_may_begin_with_any_theme():
    for name in theme.THEMES:
        app = Sample()
        theme.apply(app, name)
        async with app.run_test():
            assert app.theme == name
            assert app.native_ansi_color == (name == "terminal")


def test_a_theme_that_is_none():
    with pytest.raises(KeyError):
        theme.apply(Sample(), "nosuch")


@pytest.mark.slow
@pytest.mark.parametrize("name", theme.THEMES)
async def test_without_colours_everything_can_still_be_told_apart(name, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    app = Sample()
    async with driven(app) as pilot:
        theme.apply(app, name)
        field, area = app.query_one(Input), app.query_one(TextArea)
        field.focus()
        await pilot.press("home", "shift+right", "shift+right")
        area.select_all()
        await pilot.pause()
        styles = {text: painted(app, text) for text in ("words", "ty", "written", "one")}
        for style in styles.values():
            assert style.color is None or style.color.is_default
            assert style.bgcolor is None or style.bgcolor.is_default
        assert styles["ty"].reverse
        assert styles["written"].reverse
        assert styles["one"].bold
        app.query_one(OptionList).focus()
        await pilot.pause()
        assert painted(app, "one").underline
        assert not painted(app, "two").underline


@pytest.mark.parametrize("one", TRUE_COLOUR, ids=lambda one: str(one.name))
async def test_the_placeholder_and_the_letter_under_the_cursor_can_be_read(one):
    least = 7.0 if one is theme.HIGH_CONTRAST else 4.5
    app = Sample()
    async with driven(app) as pilot:
        theme.apply(app, one.name)
        area = app.query_one(TextArea)
        area.placeholder = "Ask"
        area.focus()
        await pilot.pause()
        cursor = area.get_component_styles("text-area--cursor")
        assert contrast(cursor.color, cursor.background) >= least
        area.text = ""
        area.cursor_blink = False
        await pilot.pause()
        style = painted(app, "sk")
        assert style.color is not None
        shown = Color.from_rich_color(style.color)
        assert contrast(shown, area.background_colors[1]) >= least


async def test_the_cursor_and_the_selection_show_in_the_terminals_own_colours():
    app = Sample()
    async with driven(app) as pilot:
        field, area = app.query_one(Input), app.query_one(TextArea)
        field.focus()
        await pilot.press("home")
        area.select_all()
        await pilot.pause()
        cursor = painted(app, "t")
        assert cursor.reverse
        assert cursor.color is None or cursor.color.is_default
        selected = painted(app, "written")
        assert selected.reverse
        assert selected.color is None or selected.color.is_default
        assert selected.bgcolor is None or selected.bgcolor.is_default


@pytest.mark.parametrize("no_color", [False, True])
async def test_the_line_at_the_cursor_is_reversed_in_the_terminals_own_colours(no_color, monkeypatch):
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    app = Sample()
    async with driven(app) as pilot:
        app.query_one(CursorLine).focus()
        await pilot.pause()
        line = app.query_one(CursorLine).render_line(0)
        assert all(part.style is not None and part.style.reverse for part in line)
        assert all(part.style and part.style.color and part.style.color.is_default for part in line)
        assert not painted(app, "plain").reverse
        theme.apply(app, "dark")
        await pilot.pause()
        line = app.query_one(CursorLine).render_line(0)
        assert {bool(part.style and part.style.reverse) for part in line} == {no_color}
