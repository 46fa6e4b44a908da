"""Small arithmetic expressions in engine profiles, such as ``budget + 1`` or ``topk > budget``.

Only numbers, strings, names, arithmetic, comparisons, and/or/not, ``x if c else y``, ``in``, tuples and the
functions min, max, int, str are known: a profile is data, never code.  A name without a value is None.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "int": int, "str": str}


class ExpressionError(ValueError):
    """An expression that is not understood; the message names it."""


@lru_cache(maxsize=4096)
def _parse(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ExpressionError(f"not an expression: {text!r}") from error


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """Value of an expression.  Raises ExpressionError for anything outside the small language."""
    try:
        return _value(_parse(text), names)
    except (TypeError, ValueError, ArithmeticError) as error:
        if isinstance(error, ExpressionError):
            raise
        raise ExpressionError(f"{text!r} has no value here: {error}") from error


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return names.get(name)
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple(_value(item, names) for item in items)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, names), _value(right, names))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, names)
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_value(value, names) for value in values)
        case ast.BoolOp(op=ast.Or(), values=values):
            return any(_value(value, names) for value in values)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _value(test, names) else orelse, names)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            value = _value(left, names)
            for compare, comparator in zip(ops, comparators, strict=True):
                other = _value(comparator, names)
                if not _COMPARE[type(compare)](value, other):
                    return False
                value = other
            return True
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(arg, names) for arg in args))
    raise ExpressionError(f"not allowed in a profile: {ast.unparse(node)}")


_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")


def fill(template: Any, names: Mapping[str, Any]) -> Any:
    """Fill ``{expression}`` placeholders in strings, lists and mappings.

    A string that is one placeholder keeps the value's type; None anywhere removes a mapping's key.
    """
    if isinstance(template, str):
        whole = _PLACEHOLDER.fullmatch(template)
        if whole:
            return evaluate(whole[1], names)
        return _PLACEHOLDER.sub(lambda match: str(evaluate(match[1], names)), template)
    if isinstance(template, Mapping):
        filled = {key: fill(value, names) for key, value in template.items()}
        return {key: value for key, value in filled.items() if value is not None}
    if isinstance(template, (list, tuple)):
        return [fill(item, names) for item in template]
    return template
