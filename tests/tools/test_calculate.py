"""Exact sums."""

from decimal import Decimal
from typing import Any

import pytest

from tests.tools.fakes import context
from tools.base import BadArguments, ToolError
from tools.calculate import add


def total(a: Any, b: Any) -> Any:
    result: Any = add.run(add.validate({"a": a, "b": b}), context())
    return result["result"]


SUMS = [
    (2, 3, 5),
    (Decimal("0.1"), Decimal("0.2"), Decimal("0.3")),
    (10**30, 1, 10**30 + 1),
    (2**53 + 1, 0, 2**53 + 1),
    (Decimal("0.5"), Decimal("0.5"), 1),
    (Decimal("-0.25"), Decimal("0.25"), 0),
    (10**400, Decimal("1E-400"), Decimal(f"1{'0' * 400}.{'0' * 399}1")),
    (Decimal("0.05"), -1, Decimal("-0.95")),
]


@pytest.mark.parametrize(("a", "b", "expected"), SUMS)
def test_sums_are_exact(a: Any, b: Any, expected: Any) -> None:
    found = total(a, b)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(("a", "b"), [(10**999 * 5, 10**999 * 5), (10**600, Decimal("1E-600"))])
def test_a_sum_of_more_digits_than_can_be_shown(a: Any, b: Any) -> None:
    with pytest.raises(ToolError) as raised:
        total(a, b)
    assert raised.value.code == "too_large"


@pytest.mark.parametrize("bad", ["1", True, None, 10**1000, Decimal("NaN"), Decimal("1E+5000")])
def test_what_is_no_number_is_refused_before_it_is_added(bad: Any) -> None:
    with pytest.raises(BadArguments):
        add.validate({"a": bad, "b": 1})
