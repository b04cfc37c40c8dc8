"""Themes: the terminal's own colours, and three true-colour themes. `apply` switches a running app.

True-colour themes distinguish surfaces by tint: $background is the page, $surface is used for the
conversations and for code and questions on the page, and $panel for anything on top of those. The terminal's
own colours have no tints, so borders, bars ($divider) and reverse video are used instead.

Every combination of text and background that the app draws meets the WCAG contrast ratios: 4.5:1 in "dark"
and "light", 7:1 in "high-contrast". With NO_COLOR, reverse video, bold and underlining are used instead of
colours.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from textual.app import App
from textual.theme import Theme

TERMINAL = Theme(
    name="terminal",
    ansi=True,
    primary="ansi_bright_blue",  # plain blue is hardly legible on black in many terminals
    secondary="ansi_cyan",
    warning="ansi_yellow",
    error="ansi_red",
    success="ansi_green",
    accent="ansi_magenta",
    foreground="ansi_default",
    background="ansi_default",
    surface="ansi_default",
    panel="ansi_default",
    boost="ansi_default",
    variables={
        # Required by Textual's own style sheets.
        "ansi-background": "ansi_default",
        "ansi-foreground": "ansi_default",
        # Reverse video is legible in any palette. Where Textual drops it, `lists.cursor_style` restores it.
        "block-cursor-foreground": "ansi_default",
        "block-cursor-background": "ansi_default",
        "block-cursor-text-style": "bold underline reverse",
        "block-cursor-blurred-text-style": "bold",
        "input-selection-background": "ansi_default",
        "input-selection-foreground": "ansi_default",
        "border": "ansi_bright_blue",
        "border-blurred": "ansi_bright_black",
        "divider": "ansi_bright_black",
        "scrollbar": "ansi_bright_black",
        "scrollbar-hover": "ansi_bright_blue",
        "scrollbar-active": "ansi_bright_blue",
        "scrollbar-background": "ansi_default",
        "scrollbar-background-hover": "ansi_default",
        "scrollbar-background-active": "ansi_default",
        "scrollbar-corner-color": "ansi_default",
        "input-cursor-background": "ansi_default",
        "input-cursor-foreground": "ansi_default",
        "input-cursor-text-style": "reverse",
        "screen-selection-background": "ansi_default",
        "screen-selection-foreground": "ansi_default",
    },
)

NO_COLOR = replace(TERMINAL, name="no-color")
"""The theme used instead of all others if NO_COLOR is set."""

STYLES = """
Input:ansi > .input--cursor { background: ansi_default; color: ansi_default; text-style: reverse; }
TextArea:ansi .text-area--selection {
    background: $input-selection-background; color: $input-selection-foreground; text-style: none;
}
TextArea:light .text-area--cursor { background: $input-cursor-background; color: $input-cursor-foreground; }
TextArea .text-area--placeholder { color: $text-muted; text-style: none; }
TextArea:ansi .text-area--placeholder { color: ansi_default; text-style: dim; }
Input:ansi > .input--selection { text-style: reverse; }
TextArea:ansi .text-area--selection { text-style: reverse; }
Screen:ansi > .screen--selection { text-style: reverse; }
"""
"""Part of the app's CSS: makes visible what Textual's widgets indicate only by colour, or only faintly."""


def _theme(
    name: str,
    *,
    dark: bool,
    primary: str,
    secondary: str,
    accent: str,
    warning: str,
    error: str,
    success: str,
    foreground: str,
    background: str,
    surface: str,
    panel: str,
    muted: str,
    border: str,
    divider: str,
    selection: str,
) -> Theme:
    """Return a theme with #rrggbb colours.

    muted: for less important text. border: for scroll bars and the borders of unfocused widgets. divider: for
    lines between surfaces. selection: the background of selected text; the text keeps its own colour.
    """
    return Theme(
        name=name,
        dark=dark,
        primary=primary,
        secondary=secondary,
        warning=warning,
        error=error,
        success=success,
        accent=accent,
        foreground=foreground,
        background=background,
        surface=surface,
        panel=panel,
        boost=panel,
        variables={
            # Text colours, which Textual would otherwise derive from other colours.
            "text-primary": primary,
            "text-secondary": secondary,
            "text-accent": accent,
            "text-warning": warning,
            "text-error": error,
            "text-success": success,
            "text": foreground,
            "text-muted": muted,
            "text-disabled": muted,
            "foreground-muted": muted,
            "foreground-disabled": muted,
            "ansi-background": background,
            "ansi-foreground": foreground,
            "block-cursor-foreground": background,
            "block-cursor-background": primary,
            "block-cursor-text-style": "bold",
            "block-cursor-blurred-text-style": "none",
            "block-cursor-blurred-foreground": foreground,
            "block-cursor-blurred-background": selection,
            "block-hover-background": panel,
            "button-color-foreground": background,
            "link-color-hover": background,
            "border": primary,
            "border-blurred": border,
            "divider": divider,
            "scrollbar": border,
            "scrollbar-hover": primary,
            "scrollbar-active": primary,
            "scrollbar-background": background,
            "scrollbar-background-hover": background,
            "scrollbar-background-active": background,
            "scrollbar-corner-color": background,
            "input-cursor-background": foreground,
            "input-cursor-foreground": background,
            "input-cursor-text-style": "none",
            "input-selection-background": selection,
            "input-selection-foreground": foreground,
            "screen-selection-background": selection,
            "screen-selection-foreground": foreground,
        },
    )


DARK = _theme(
    "dark",
    dark=True,
    primary="#7fb2ff",
    secondary="#69cbd0",
    accent="#c9a5f7",
    warning="#ecbb6a",
    error="#f78c93",
    success="#93d488",
    foreground="#e4e7ee",
    background="#11131a",
    surface="#1a1d27",
    panel="#252a37",
    muted="#a3a9b8",
    border="#4a5163",
    divider="#2b3040",
    selection="#2f4468",
)
LIGHT = _theme(
    "light",
    dark=False,
    primary="#1f55c0",
    secondary="#0b666c",
    accent="#7334b3",
    warning="#805000",
    error="#b01f22",
    success="#24652a",
    foreground="#20232b",
    background="#fcfbf8",
    surface="#f2efe8",
    panel="#e7e2d7",
    muted="#595d69",
    border="#a6a294",
    divider="#ddd7c9",
    selection="#c9dbfb",
)
HIGH_CONTRAST = _theme(
    "high-contrast",
    dark=True,
    primary="#8fd0ff",
    secondary="#6ff2ee",
    accent="#f2b8ff",
    warning="#ffd75e",
    error="#ffb0ad",
    success="#8df58d",
    foreground="#ffffff",
    background="#000000",
    surface="#101010",
    panel="#1e1e1e",
    muted="#d6d6d6",
    border="#ffffff",
    divider="#ffffff",
    selection="#0a2f63",
)

THEMES: dict[str, Theme] = {theme.name: theme for theme in (TERMINAL, DARK, LIGHT, HIGH_CONTRAST)}
"""Themes, keyed by their names in the `theme` setting."""


def apply(app: App[Any], name: str) -> None:
    """Change an app's theme, before or while it runs. Raises KeyError for an unknown name.

    The app is created with ansi_color=True, which makes Textual choose the NO_COLOR filter once. Setting it
    to None afterwards lets Textual's other filter follow the theme.
    """
    theme = NO_COLOR if app.no_color else THEMES[name]
    app.register_theme(theme)
    app.theme = theme.name
    app.ansi_color = None
