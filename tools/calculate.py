"""Exact arithmetic."""

from decimal import Decimal, Rounded, localcontext

from tools.base import JsonValue, Number, ToolError, canonical, tool

MAX_DIGITS = 1_000

_NUMBER = r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"


@tool(
    effect="none",
    permission="math",
    source="exact arithmetic",
    phrases=(
        rf"\badd (?P<a>{_NUMBER}) (?:and|to|plus) (?P<b>{_NUMBER})(?!\d|\.\d)",
        rf"(?<![\d.])(?P<a>{_NUMBER})\s*(?:plus|\+|加上?)\s*(?P<b>{_NUMBER})(?!\d|\.\d)",
        rf"(?<![\d.])(?P<a>{_NUMBER})\s*(?:和|与)\s*(?P<b>{_NUMBER})\s*(?:相加|的和|加起来)",
    ),
)
def add(a: Number, b: Number) -> JsonValue:
    """Add two numbers exactly: 0.1 and 0.2 give 0.3.

    Use it for every sum of two numbers, also for a small one. Do not use it for words or dates.

    Args:
        a: The first number, as a JSON number without quotes.
        b: The second number, as a JSON number without quotes.
    """
    return {"result": _sum(a, b)}


def _sum(a: int | Decimal, b: int | Decimal) -> JsonValue:
    """The sum with all its digits: rounding, even of zeros, is trapped."""
    with localcontext(prec=MAX_DIGITS) as context:
        context.traps[Rounded] = True
        try:
            return canonical(Decimal(a) + Decimal(b))
        except Rounded:
            message = f"The sum has more than {MAX_DIGITS:,} digits, which is too many to show."
            raise ToolError("too_large", message) from None
