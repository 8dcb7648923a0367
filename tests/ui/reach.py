"""What can be reached from a value: the objects that it holds, and what those hold."""

import gc
import random
import re
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import is_dataclass
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

_PLAIN = (str, bytes, int, float, complex, bool, Decimal, range, slice, re.Pattern, PurePath, Enum)
_CODE = (type, ModuleType, CodeType)


def reachable(root: object, stop: Callable[[object], bool] = lambda _: False) -> dict[int, Any]:
    """All objects reachable from `root`, by id; one at which `stop` says True is left out, and not entered.

    Classes and modules are not entered, and of a function only what it closes over, and its defaults.
    """
    found: dict[int, Any] = {}
    open_: list[object] = [root]
    while open_:
        value = open_.pop()
        if id(value) in found or isinstance(value, _CODE) or stop(value):
            continue
        found[id(value)] = value
        open_ += _held(value)
    return found


def _held(value: object) -> Iterable[object]:
    if isinstance(value, (*_PLAIN, weakref.ref, random.Random)):
        return []
    if isinstance(value, FunctionType):
        kept = (value.__kwdefaults__ or {}, vars(value))
        return [
            *(value.__closure__ or ()),
            *(value.__defaults__ or ()),
            *(v for d in kept for v in d.values()),
        ]
    if isinstance(value, BuiltinFunctionType):
        return [value.__self__]
    return gc.get_referents(value)


def changeable(objects: Iterable[object]) -> Iterator[object]:
    """Those that somebody could change. What they hold is for `reachable` to find."""
    for value in objects:
        frozen = is_dataclass(value) and type(value).__dataclass_params__.frozen  # type: ignore[attr-defined]
        fixed = isinstance(value, (*_PLAIN, tuple, frozenset, FunctionType, BuiltinFunctionType, weakref.ref))
        if not (value is None or value is Ellipsis or frozen or fixed or isinstance(value, random.Random)):
            yield value
