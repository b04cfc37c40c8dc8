"""Formulas: what they become, and that nothing of one is lost, however it is written."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.base.latex.convert import displayed, in_line
from edgechat.tui.markdown.document import Document
from tests.counting import calls_of


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (r"\frac{a}{b}", "a/b"),
        (r"\frac{a+b}{2c}", "(a+b)/(2c)"),
        (r"\frac{dy}{dx} = \frac{1}{2}", "dy/dx = ½"),
        (r"\frac12 m v^2", "½ m v²"),
        (r"\frac{1}{n}x", "1/n x"),
        (r"x^{n+1} + y_{ij}", "xⁿ⁺¹ + yᵢⱼ"),
        (r"x^q, x^{ab}, T_{eff}, a_{i,j}", "x^q, xᵃᵇ, T_eff, a_(i,j)"),
        (r"e^{i\pi} = -1", "e^(iπ) = -1"),
        (r"\sqrt{2}x + \sqrt[3]{x+1} + \sqrt[n]{y}", "√2 x + ∛(x+1) + ⁿ√y"),
        (r"\sum_{i=1}^{n} x_i", "∑ᵢ₌₁ⁿ xᵢ"),
        (r"\int_0^\infty e^{-x}\,dx", "∫₀^∞ e⁻ˣ dx"),
        (r"a\le b\ne c\times d\cdot e\to f", "a ≤ b ≠ c × d · e → f"),
        (r"\mathbb{R}^n \ni \mathbf{v}, \mathcal{L}", "ℝⁿ ∋ 𝐯, ℒ"),
        (r"f(x) \text{ if } x > 0", "f(x) if x > 0"),
        (r"2\sin x\cos x", "2 sin x cos x"),
        (r"\alpha\beta\Gamma\lambda\varepsilon", "αβΓλε"),
        (r"90^\circ, A^\top, f'(x)", "90°, Aᵀ, f′(x)"),
        (r"\pm 1, f''", "±1, f″"),
        (r"\lfloor x \rfloor", "⌊x⌋"),
        (r"e^{-\frac{(x-\mu)^2}{2}}", "e^(-(x-μ)²/2)"),
        (r"\hat{x} \vec v \overline{AB}", "x̂ v⃗ A̅B̅"),
        (r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}", "(a b; c d)"),
        (r"\left\{ x \mid x \not\in S \right\}", "{x ∣ x ∉ S}"),
        (r"50\% \& \#1", "50% & #1"),
        (r"\binom{n}{k} \pmod{p}", "(n choose k) (mod p)"),
        (r"{}^{14}C", "¹⁴C"),
    ],
)
def test_in_a_line(formula, text):
    assert in_line(formula) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(
    ("formula", "lines"),
    [
        (r"x = \frac{-b \pm \sqrt{D}}{2a}", ["     -b ± √D", "x = ─────────", "       2a"]),
        (r"\sum_{i=1}^n i", [" n", " ∑ i", "i=1"]),
        (r"A = \begin{bmatrix} 1 & 20 \\ 3 & 4 \end{bmatrix}^T", ["A = ⎡1  20⎤ᵀ", "    ⎣3  4 ⎦"]),
        (r"|x| = \begin{cases} x & x>0 \\ -x \end{cases}", ["|x| = ⎧x   x>0", "      ⎩-x"]),
        (r"\begin{align} a &= b \\ &= cd \end{align}", ["a = b", "  = cd"]),
        (r"a = b \\ c = d", ["a = b", "c = d"]),
        (r"\underbrace{a+b}_{c} x", ["a+b x", "╰─╯", " c"]),
        (r"\boxed{42}", ["┌────┐", "│ 42 │", "└────┘"]),
        (r"\left( \frac{a}{b} \right)^2", ["⎛ a ⎞²", "⎜───⎟", "⎝ b ⎠"]),
    ],
)
def test_displayed(formula, lines):
    assert displayed(formula) == tuple(lines)


@pytest.mark.parametrize(
    "formula",
    [
        r"\unknown{x}",
        r"\underbrace{a}_b",
        r"\frac{a",
        "a}",
        "{" * 50,
        r"x^1^2",
        r"\left( x",
        r"\begin{foo} x \end{foo}",
        "a & $",
        "",
        " ",
        r"\\",
    ],
)
def test_what_is_not_understood_is_not_converted(formula):
    assert in_line(formula) is None or "\\" not in in_line(formula)
    assert Document(f"See \\({formula}\\).").lines(60)[0].content.plain == f"See \\({formula}\\)." or in_line(
        formula
    )


LETTERS = st.sampled_from("abcdxyzABCXYZ0123456789")
FORMULAS = st.recursive(
    LETTERS,
    lambda inner: st.one_of(
        st.builds(r"\frac{{{}}}{{{}}}".format, inner, inner),
        st.builds(r"\sqrt{{{}}}".format, inner),
        st.builds("{}^{{{}}}".format, LETTERS, inner),
        st.builds("{}_{{{}}}".format, LETTERS, inner),
        st.builds(r"\left( {} \right)".format, inner),
        st.builds(r"{} + {}".format, inner, inner),
        st.builds(r"\sum_{{{}}}^{{{}}} {}".format, inner, inner, inner),
        st.builds(r"\begin{{bmatrix}} {} & {} \\ {} \end{{bmatrix}}".format, inner, inner, inner),
        st.builds(r"\text{{{}}}".format, LETTERS),
    ),
    max_leaves=12,
)


def letters(text):
    """Return the letters and digits, those of scripts and simple fractions too."""
    return sorted(char for char in unicodedata.normalize("NFKD", text) if char.isalnum() and char.isascii())


@given(FORMULAS)
def test_no_letter_is_lost(formula):
    expected = letters(re.sub(r"\\[a-z]+(?:\{bmatrix\})?", "", formula))
    line, lines = in_line(formula), displayed(formula)
    assert line is not None
    assert letters(line) == expected
    if lines is not None:
        assert letters("".join(lines)) == expected


PARTS = st.sampled_from(
    [
        *("{}^_&$ab1 []'\n"),
        *(r"\\", r"\frac", r"\sqrt", r"\left(", r"\right)", r"\begin{matrix}", r"\end{matrix}", r"\sum"),
        *(r"\text{x y}", r"\not", r"\hat", r"\tag{1}", r"\overset", r"\boxed", r"\mathbb"),
    ]
)


@given(st.lists(PARTS, max_size=40).map("".join))
def test_any_source_is_converted_or_left_alone(source):
    for lines in ([in_line(source)], displayed(source)):
        assert lines is None or all(line is None or not re.search(r"\\[a-z]", line) for line in lines)


@pytest.mark.parametrize(
    "sign", ["{", r"\frac", r"\left(", "^", r"\begin{matrix}", r"a\\", "{}", "$", r"\(", r"\[", "$$\n"]
)
def test_time_is_bounded(sign):
    def cost(n):
        return calls_of(lambda: Document(sign * n).lines(80))

    assert cost(4000) < 6 * cost(1000) + 200_000
