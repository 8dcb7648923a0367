"""The present date and time, in a time zone that is named."""

import difflib
import zoneinfo
from datetime import UTC, tzinfo
from functools import cache

from tools.base import JsonValue, ToolContext, ToolError, tool

MAX_CHOICES = 5

# A key with a part before its place: bare city names are for a model to translate.
_KEY = r"[A-Za-z_]+/[A-Za-z_/+-]*[A-Za-z_]|UTC"

# Files in the database that are no places: what they mean differs from machine to machine.
_NO_PLACES = frozenset({"Factory", "localtime", "posixrules"})


@tool(
    effect="read",
    permission="clock",
    source="system clock",
    phrases=(
        rf"\b(?:what(?:'s| is) the |current |what )?time (?:is it )?(?:now )?in (?P<timezone>{_KEY})\b",
        r"\b(?:what time is it|what(?:'s| is) the time|current time)\b(?!(?: now)? in\b)",
        rf"(?P<timezone>{_KEY})\s*(?:现在)?(?:的)?(?:是)?(?:几点|时间)",
        r"(?:^|[\s，。！？、,.!?])(?:请问)?现在(?:是)?(?:几点|什么时间)",
    ),
)
def get_current_datetime(ctx: ToolContext, timezone: str = "UTC") -> JsonValue:
    """Tell the present date, time and weekday in a time zone.

    Use it whenever an answer depends on the present moment: you do not know the time yourself. Do
    not use it to convert a time that is already known.

    Args:
        timezone: A time zone key such as Asia/Tokyo or Europe/Berlin, spelled exactly. A city, a
            country or an abbreviation such as PST is no key. UTC where no place was named.
    """
    local = ctx.clock.now().astimezone(_zone(timezone))
    iso = local.isoformat(timespec="seconds")
    return {
        "iso": iso,
        "timezone": timezone,
        "weekday": _WEEKDAYS[local.weekday()],
        "utc_offset": iso[19:],
        "source": "system clock",
    }


# strftime would answer in the language of the machine.
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@cache
def timezone_keys() -> frozenset[str]:
    """The keys that may be asked for; empty where the machine has no time zone data."""
    return frozenset(zoneinfo.available_timezones()) - _NO_PLACES


def _zone(key: str) -> tzinfo:
    """The zone of a known key. ZoneInfo opens a file named by the key, so the key is checked first."""
    if key == "UTC":
        return UTC
    keys = timezone_keys()
    if not keys:
        raise ToolError("configuration", "There is no time zone data here; only UTC can be told.")
    if key not in keys:
        raise _unknown(key, keys)
    try:
        return zoneinfo.ZoneInfo(key)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ToolError("configuration", "The time zone data here cannot be read; ask for UTC.") from None


def _unknown(key: str, keys: frozenset[str]) -> ToolError:
    choices: list[JsonValue] = [*close_keys(key, keys)]
    shown = ", ".join(map(str, choices)) or "Asia/Shanghai"
    return ToolError(
        "bad_arguments",
        f"'timezone' must be a time zone key, such as {shown}; {_short(key)} is none.",
        choices=choices,
    )


def close_keys(key: str, keys: frozenset[str]) -> list[str]:
    """Keys that were perhaps meant: the same last part first, then a similar spelling."""
    wanted = key[:100].strip().replace(" ", "_").casefold()
    last = wanted.rpartition("/")[2]
    same = sorted(one for one in keys if one.casefold().rpartition("/")[2] == last)
    by_folded = {one.casefold(): one for one in sorted(keys)}
    similar = difflib.get_close_matches(wanted, by_folded, n=MAX_CHOICES, cutoff=0.75)
    return list(dict.fromkeys([*same, *(by_folded[one] for one in similar)]))[:MAX_CHOICES]


def _short(key: str) -> str:
    shown = "".join(c if c.isprintable() else "?" for c in key[:40])
    return f'"{shown}…"' if len(key) > 40 else f'"{shown}"'
