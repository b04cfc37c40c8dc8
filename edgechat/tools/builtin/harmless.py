"""Tools that need no consent: the calculator and the clock.

Expressions are parsed by Python's parser and evaluated here, node by node.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec

from edgechat.tools.builtin.group import BuiltInGroup, BuiltInTool, ToolFailure

_MOST_CHARACTERS = 500
_MOST_BITS = 4096
"""Maximum size of integers, in bits; keeps arithmetic fast."""
_MOST_FACTORIAL = 500
_MOST_DIGITS = 400
"""Maximum number of digits to round to, since Python computes that power of 10."""
Number = int | float

_BINARY: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: lambda base, exponent: _power(base, exponent),
}
_UNARY: Final[dict[type[ast.unaryop], Callable[[Any], Any]]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_CONSTANTS: Final = {"pi": math.pi, "e": math.e, "tau": math.tau}
_OF_MATH = (
    "sqrt exp log log2 log10 sin cos tan asin acos atan atan2 hypot degrees radians floor ceil trunc gcd lcm"
)
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    **{name: getattr(math, name) for name in _OF_MATH.split()},
    "abs": abs,
    "round": lambda number, digits=None: _rounded(number, digits),
    "min": min,
    "max": max,
    "factorial": lambda n: math.factorial(n if n <= _MOST_FACTORIAL else _too_large()),
}


class Calculation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `calculate`."""

    expression: Annotated[str, msgspec.Meta(description="For example: (3 + 4.5) * 2 ** 10 / sqrt(2)")]


def calculator() -> BuiltInGroup:
    """Return the calculator."""

    async def run(wanted: Calculation) -> str:
        return calculate(wanted.expression)

    description = (
        "Computes an arithmetic expression exactly: + - * / // % **, parentheses, pi, e, and functions such "
        "as sqrt, log, sin (radians), round, factorial."
    )
    return BuiltInGroup("calculator", BuiltInTool("calculate", description, Calculation, run, harmless=True))


def calculate(expression: str) -> str:
    """Evaluate an arithmetic expression and return its value as text. Raises ToolFailure."""
    if len(expression) > _MOST_CHARACTERS:
        raise ToolFailure(f"the expression has more than {_MOST_CHARACTERS} characters.")
    try:
        return str(_value(ast.parse(expression.strip().replace("^", "**"), mode="eval").body))
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ToolFailure("this is not an arithmetic expression.") from error
    except (ArithmeticError, ValueError, TypeError) as error:
        raise ToolFailure(f"this cannot be computed: {error}.") from error


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.BinOp(left, op, right) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_value(left), _value(right)))
        case ast.UnaryOp(op, operand) if type(op) in _UNARY:
            return _bounded(_UNARY[type(op)](_value(operand)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*map(_value, arguments)))
    names = ", ".join([*_CONSTANTS, *_FUNCTIONS])
    raise ToolFailure(f"only numbers, + - * / // % **, parentheses and these names are known: {names}.")


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0:
        if base.bit_length() * exponent > _MOST_BITS:
            _too_large()
        return int(base**exponent)
    result = base**exponent
    if isinstance(result, complex):
        raise ToolFailure("the result is not a real number.")
    return float(result)


def _rounded(number: Number, digits: int | None) -> Number:
    if digits is not None and abs(digits) > _MOST_DIGITS:
        _too_large()
    return round(number, digits)


def _bounded(value: Any) -> Number:
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        _too_large()
    if not isinstance(value, int | float):
        raise ToolFailure("the result is not a real number.")
    return value


def _too_large() -> Any:
    raise ToolFailure("a number in it is too large.")


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of a tool that takes none."""


def clock() -> BuiltInGroup:
    """Return the tool that reports the date and time."""

    async def run(_wanted: Nothing) -> str:
        now = datetime.now().astimezone()
        return now.strftime("%A, %Y-%m-%d %H:%M:%S %z (%Z)")

    description = "Returns today's date, the day of the week and the time of day, where the user is."
    return BuiltInGroup("date", BuiltInTool("current_date", description, Nothing, run, harmless=True))
