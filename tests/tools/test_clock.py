"""The clock tool, with an injected clock."""

import zoneinfo
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.tools.fakes import context
from tools.base import ToolError
from tools.clock import get_current_datetime


def ask(timezone: str, at: datetime = datetime(2026, 7, 15, 12, tzinfo=UTC)) -> Any:
    return get_current_datetime.run(get_current_datetime.validate({"timezone": timezone}), context(at=at))


PLACES = [
    ("UTC", datetime(2026, 7, 15, 12, tzinfo=UTC), "2026-07-15T12:00:00+00:00", "Wednesday"),
    ("Asia/Shanghai", datetime(2026, 7, 15, 12, tzinfo=UTC), "2026-07-15T20:00:00+08:00", "Wednesday"),
    ("Asia/Kathmandu", datetime(2026, 7, 15, 12, tzinfo=UTC), "2026-07-15T17:45:00+05:45", "Wednesday"),
    ("America/New_York", datetime(2026, 1, 15, 3, tzinfo=UTC), "2026-01-14T22:00:00-05:00", "Wednesday"),
    ("America/New_York", datetime(2026, 11, 1, 5, 30, tzinfo=UTC), "2026-11-01T01:30:00-04:00", "Sunday"),
    ("America/New_York", datetime(2026, 11, 1, 6, 30, tzinfo=UTC), "2026-11-01T01:30:00-05:00", "Sunday"),
    ("Pacific/Kiritimati", datetime(2026, 1, 15, 12, tzinfo=UTC), "2026-01-16T02:00:00+14:00", "Friday"),
]


@pytest.mark.parametrize(("timezone", "at", "iso", "weekday"), PLACES)
def test_the_time_with_its_offset(timezone: str, at: datetime, iso: str, weekday: str) -> None:
    assert ask(timezone, at) == {
        "iso": iso,
        "timezone": timezone,
        "weekday": weekday,
        "utc_offset": iso[19:],
        "source": "system clock",
    }


def test_utc_where_no_place_is_named() -> None:
    assert get_current_datetime.validate({}) == {"timezone": "UTC"}


@pytest.mark.parametrize(
    ("timezone", "choice"),
    [
        ("Tokyo", "Asia/Tokyo"),
        ("asia/tokyo", "Asia/Tokyo"),
        ("Asia/Tokio", "Asia/Tokyo"),
        ("new york", "America/New_York"),
        ("Europe/Berln", "Europe/Berlin"),
    ],
)
def test_an_unknown_key_gets_close_ones(timezone: str, choice: str) -> None:
    with pytest.raises(ToolError) as raised:
        ask(timezone)
    assert raised.value.code == "bad_arguments"
    choices: Any = raised.value.details["choices"]
    assert choice in choices
    assert len(choices) <= 5


NO_KEYS = ["", " ", "Factory", "localtime", "posixrules", "../etc/passwd", "/etc/passwd", "Asia", "Asia/",
           "Asia\x00/Tokyo", "x" * 5_000, "北京", "UTC+8", "\ud800", "tzdata.zi", "zone.tab"]  # fmt: skip


@pytest.mark.parametrize("timezone", NO_KEYS, ids=range(len(NO_KEYS)))
def test_what_is_no_key_reaches_no_file_and_tells_no_path(timezone: str) -> None:
    with pytest.raises(ToolError) as raised:
        ask(timezone)
    assert raised.value.code == "bad_arguments"
    assert " such as " in raised.value.message
    assert len(raised.value.message) <= 250
    assert raised.value.message.isprintable()
    assert not any(str(Path(place)) in raised.value.message for place in zoneinfo.TZPATH)
