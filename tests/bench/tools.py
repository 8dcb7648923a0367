"""The tools that both sides offer: those of the deployment, and one whose function is called."""

from tools.base import JsonValue, Tool, tool
from tools.catalog import ALL_TOOLS


def lookup(city: str, day: int = 0) -> JsonValue:
    """Tell the weather of a city.

    Args:
        city: The name of the city.
        day: Days from today.
    """
    return {"city": city, "day": day, "celsius": 21.5, "sky": "clear"}


TOOLS: tuple[Tool, ...] = (*ALL_TOOLS, tool(effect="read", permission="weather")(lookup))
