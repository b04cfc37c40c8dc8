"""Where formulas begin and end in Markdown, and what only looks like one."""

import pytest

from edgechat.tui.markdown.document import Document


def shown(text, width=70):
    return "\n".join(line.content.plain.rstrip() for line in Document(text).lines(width))


@pytest.mark.parametrize(
    "text",
    [
        "It costs $5 and $10.",
        "From $5-$10, or US$7/$8, or 3$ and 4$.",
        "I have $5, you have 3$.",
        "Paths: $x_dir/$y, $HOME/bin and $PATH, C:\\new, a_b$c_d$e",
        "$ x $ and $",
        "A user_id of $5 (per user_id), or 10$.",
        "`$x^2$` in code",
    ],
)
def test_prices_and_variables_are_no_maths(text):
    assert shown(text) == text.replace("`", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"where $x^2$ and \(y_1\).", "where x² and y₁."),
        (r"the $n$th and the $\alpha$s", "the nth and the αs"),
        ("$a$, $ABC$ and $f(x)$", "a, ABC and f(x)"),
        ("It costs $5 for $n^2$ items", "It costs $5 for n² items"),
        (r"**bold $a_1$ and $b_1$**", "bold a₁ and b₁"),
        (r"inline \[ x^2 \] and $$y^2$$ too", "inline x² and y² too"),
        (r"unknown \(\foo\,x\) stays", r"unknown \(\foo\,x\) stays"),
        ("$x\\$y$", "x$y"),
    ],
)
def test_in_a_paragraph(text, expected):
    assert shown(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("So:\n\\[\nx^2\n\\]\nwhere", "So:\n\n  x²\n\nwhere"),
        ("$$x^2$$", "  x²"),
        ("$$\nx^2,\n$$", "  x²,"),
        ("$$x^2$$.", "  x²."),
        ("\\begin{align*}\na &= 1 \\\\\nb &= 2\n\\end{align*}", "  a = 1\n  b = 2"),
        ("1. First:\n   $$\n   x^2\n   $$\n2. Then", " 1. First:\n      x²\n 2. Then"),
        ("> \\[ x^2 \\]", "▎   x²"),
        ("\\[\n\\foo{x}\\,y\n\\]", "  \\[\n  \\foo{x}\\,y\n  \\]"),
        ("    $$x^2$$", None),
    ],
)
def test_on_lines_of_its_own(text, expected):
    assert shown(text) == expected if expected else "$$x^2$$" in shown(text)


@pytest.mark.parametrize(
    "text",
    [
        r"Let $\frac{a}{b",
        r"Let \(x_1, \{y\}, \,",
        "\\[\n\\frac{a}{b} \\,",
        "$$\n\\begin{pmatrix} a \\\\",
        "\\begin{align}\na &= b \\\\",
        r"see \( *a* \alpha *b* and",
    ],
)
def test_an_unfinished_formula_stays_as_it_stands(text):
    assert [line.strip() for line in shown(text).split("\n")] == text.split("\n")


def test_a_formula_is_source_until_it_ends_and_then_maths_at_once():
    text = r"Let $\frac{a}{b}$ be"
    for end in range(6, len(text)):
        seen = shown(text[:end])
        assert seen in (text[:end].rstrip(), "Let a/b", "Let a/b b")


def test_a_wide_formula_is_written_in_a_line_and_wrapped():
    formula = r"\frac{a}{b} + " * 9 + "c"
    lines = shown(f"$${formula}$$", 40).split("\n")
    assert " ".join(line.strip() for line in lines) == "a/b + " * 9 + "c"
    assert max(map(len, lines)) <= 40
