"""Unicode characters for LaTeX commands."""

from __future__ import annotations

import unicodedata


def _pairs(table: str) -> dict[str, str]:
    """Parse a table of names, each followed by its symbol."""
    words = table.split()
    return dict(zip(words[::2], words[1::2], strict=True))


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_GREEK = """
    alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau
    upsilon phi chi psi omega
"""


def _greek() -> dict[str, str]:
    letters: dict[str, str] = {}
    for name in _GREEK.split():
        spelt = name.replace("lambda", "lamda").upper()  # Unicode's spelling
        letters[name] = unicodedata.lookup(f"GREEK SMALL LETTER {spelt}")
        letters[name.capitalize()] = unicodedata.lookup(f"GREEK CAPITAL LETTER {spelt}")
    return letters


_SIGNS = r"""
    epsilon ϵ  phi ϕ  varepsilon ε  varphi φ  vartheta ϑ  varpi ϖ  varrho ϱ  varsigma ς  varkappa ϰ
    digamma ϝ  infty ∞  partial ∂  nabla ∇  emptyset ∅  varnothing ∅  aleph ℵ  hbar ℏ  ell ℓ  Re ℜ  Im ℑ
    wp ℘  imath ı  jmath ȷ  beth ℶ  forall ∀  exists ∃  nexists ∄  neg ¬  lnot ¬  top ⊤  bot ⊥  angle ∠
    triangle △  square □  Box □  blacksquare ■  diamond ⋄  star ⋆  bullet •  dagger †  ddagger ‡  degree °
    prime ′  ldots …  dots …  cdots ⋯  vdots ⋮  ddots ⋱  dotsc …  dotsb ⋯  checkmark ✓  copyright ©
    pounds £  euro €  S §  P ¶  colon :  lbrace {  rbrace }  lbrack [  rbrack ]  langle ⟨  rangle ⟩
    lfloor ⌊  rfloor ⌋  lceil ⌈  rceil ⌉  backslash \  Vert ‖  lvert |  rvert |  vert |  lVert ‖  rVert ‖
    qed ∎  complement ∁  heartsuit ♡  spadesuit ♠  clubsuit ♣  diamondsuit ♢  flat ♭  sharp ♯  { {  } }
    % %  & &  # #  _ _  $ $  | ‖
"""
_NOTHING = """
    displaystyle textstyle limits nolimits nonumber notag hline big Big bigg Bigg bigl bigr Bigl Bigr
    middle biggl biggr Biggl Biggr bigm Bigm scriptstyle
"""
_SPACES = {",": " ", ";": " ", ":": " ", " ": " ", ">": " ", "!": "", "quad": "  ", "qquad": "    "}
ORDINARY = _greek() | _pairs(_SIGNS) | _SPACES | dict.fromkeys(_NOTHING.split(), "")
"""Symbols written without spaces around them."""

OPERATORS = _pairs("""
    times ×  cdot ·  div ÷  pm ±  mp ∓  ast ∗  circ ∘  bmod mod  oplus ⊕  ominus ⊖  otimes ⊗  oslash ⊘
    odot ⊙  wedge ∧  vee ∨  land ∧  lor ∨  cap ∩  cup ∪  sqcap ⊓  sqcup ⊔  uplus ⊎  setminus ∖
    smallsetminus ∖  amalg ⨿  wr ≀  cdotp ·  le ≤  leq ≤  leqslant ≤  ge ≥  geq ≥  geqslant ≥  ne ≠  neq ≠
    lt <  gt >  ll ≪  gg ≫  equiv ≡  approx ≈  sim ∼  simeq ≃  cong ≅  propto ∝  asymp ≍  doteq ≐
    coloneqq ≔  triangleq ≜  prec ≺  succ ≻  preceq ⪯  succeq ⪰  lesssim ≲  gtrsim ≳  in ∈  notin ∉  ni ∋
    subset ⊂  supset ⊃  subseteq ⊆  supseteq ⊇  subsetneq ⊊  supsetneq ⊋  sqsubseteq ⊑  sqsupseteq ⊒
    nsubseteq ⊈  to →  rightarrow →  leftarrow ←  gets ←  leftrightarrow ↔  mapsto ↦  longrightarrow ⟶
    longleftarrow ⟵  longleftrightarrow ⟷  longmapsto ⟼  Rightarrow ⇒  Leftarrow ⇐  Leftrightarrow ⇔
    implies ⟹  impliedby ⟸  iff ⟺  Longrightarrow ⟹  Longleftarrow ⟸  Longleftrightarrow ⟺  uparrow ↑
    downarrow ↓  updownarrow ↕  Uparrow ⇑  Downarrow ⇓  nearrow ↗  searrow ↘  swarrow ↙  nwarrow ↖
    hookrightarrow ↪  rightleftharpoons ⇌  leadsto ⇝  rightsquigarrow ⇝  upharpoonright ↾  parallel ∥
    nparallel ∦  perp ⊥  mid ∣  nmid ∤  vdash ⊢  dashv ⊣  models ⊨  vDash ⊨  therefore ∴  because ∵
    bowtie ⋈  lhd ⊲  rhd ⊳
""")
"""Symbols written with a space on each side."""

LARGE = _pairs("""
    sum ∑  prod ∏  coprod ∐  bigcup ⋃  bigcap ⋂  bigvee ⋁  bigwedge ⋀  bigoplus ⨁  bigotimes ⨂  bigodot ⨀
    biguplus ⨄  bigsqcup ⨆
""")
"""Symbols whose limits are placed above and below them in a displayed formula."""

INTEGRALS = _pairs("int ∫  iint ∬  iiint ∭  oint ∮  oiint ∯")

FUNCTIONS = _words("""
    sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh coth log ln lg exp deg det dim gcd hom
    ker arg Pr sgn
""")
_LONG_LIMITS = {"limsup": "lim sup", "liminf": "lim inf", "argmax": "arg max", "argmin": "arg min"}
LIMITS = {name: name for name in ("lim", "max", "min", "sup", "inf")} | _LONG_LIMITS
"""Functions with a limit below them."""

ACCENTS = _pairs("""
    hat \u0302  overrightarrow \u20d7  widehat \u0302  bar \u0304  overline \u0305  underline \u0332
    tilde \u0303  widetilde \u0303  vec \u20d7  dot \u0307  ddot \u0308  check \u030c  breve \u0306
    acute \u0301  grave \u0300
    mathring \u030a
""")
"""Combining characters, which follow the letter they modify."""

LONG_ACCENTS = ("overline", "underline", "overrightarrow")
"""Accents that can cover several letters."""

_ALPHABETS = _pairs("""
    mathbb DOUBLE-STRUCK  mathcal SCRIPT  mathscr SCRIPT  mathfrak FRAKTUR  mathbf BOLD  boldsymbol BOLD
    bm BOLD  Bbb DOUBLE-STRUCK
""")
UPRIGHT = _words("mathrm mathit mathsf mathtt mathnormal mathop mathbin mathrel mathord mathopen")
TEXTS = _words("text textbf textrm textit textsf texttt textnormal mbox hbox operatorname")


def in_alphabet(command: str, text: str) -> str | None:
    r"""Return text in a mathematical alphabet (\mathbb{R} gives ℝ), or None for other commands."""
    alphabet = _ALPHABETS.get(command)
    return None if alphabet is None else "".join(_letter(alphabet, char) for char in text)


def _letter(alphabet: str, char: str) -> str:
    name = unicodedata.name(char, "")
    if not (char.isascii() and char.isalnum()) and not (alphabet == "BOLD" and name.startswith("GREEK")):
        return char
    name = name.removeprefix("LATIN ").removeprefix("GREEK ").replace(" LETTER", "")
    first = alphabet if alphabet != "FRAKTUR" else "BLACK-LETTER"
    for candidate in (f"{first} {name}", f"MATHEMATICAL {alphabet} {name}"):
        try:
            return unicodedata.lookup(candidate)
        except KeyError:
            continue
    return char


SUPERSCRIPTS = str.maketrans(
    "0123456789+-−=()abcdefghijklmnoprstuvwxyzABDEGHIJKLMNOPRTUVW′″‴",
    "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻᴬᴮᴰᴱᴳᴴᴵᴶᴷᴸᴹᴺᴼᴾᴿᵀᵁⱽᵂ′″‴",
)
SUBSCRIPTS = str.maketrans("0123456789+-−=()aehijklmnoprstuvxβγρφχ", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓᵦᵧᵨᵩᵪ")


def scripted(text: str, table: dict[int, int]) -> str | None:
    """Return `text` in superscript or subscript characters, or None if the table lacks any of them."""
    return text.translate(table) if all(ord(char) in table for char in text) else None


SIMPLE_FRACTIONS = _pairs("""
    1/2 ½  1/3 ⅓  2/3 ⅔  1/4 ¼  3/4 ¾  1/5 ⅕  2/5 ⅖  3/5 ⅗  4/5 ⅘  1/6 ⅙  5/6 ⅚  1/8 ⅛  3/8 ⅜  5/8 ⅝
    7/8 ⅞
""")
ROOTS = {"3": "∛", "4": "∜"}
FENCES = {
    "matrix": ("", ""),
    "smallmatrix": ("", ""),
    "array": ("", ""),
    "cases": ("{", ""),
    "dcases": ("{", ""),
    "rcases": ("", "}"),
    "pmatrix": ("(", ")"),
    "bmatrix": ("[", "]"),
    "Bmatrix": ("{", "}"),
    "vmatrix": ("|", "|"),
    "Vmatrix": ("‖", "‖"),
}
"""Environments with rows of cells, and their left and right delimiters."""
LINES = _words("""
    equation align aligned alignat alignedat gather gathered multline split flalign eqnarray displaymath
""")
"""Environments with lines instead of cells."""
TALL = _pairs("""
    ( ⎛⎜⎜⎝  ) ⎞⎟⎟⎠  [ ⎡⎢⎢⎣  ] ⎤⎥⎥⎦  { ⎧⎨⎪⎩  } ⎫⎬⎪⎭  | ││││  ‖ ‖‖‖‖  ⌊ ⎢⎢⎢⎣  ⌋ ⎥⎥⎥⎦  ⌈ ⎡⎢⎢⎢  ⌉ ⎤⎥⎥⎥
""")
"""The top, middle, repeated and bottom pieces of delimiters that span several lines."""
