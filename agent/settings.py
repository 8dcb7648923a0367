"""Settings, from the environment and a TOML file, and the model that they describe."""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agent.model import Model

_CLIENT_TIMEOUT_S = 30.0
_FALLBACKS = {"base_url": "OPENAI_BASE_URL", "api_key": "OPENAI_API_KEY"}
_SWITCH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class SettingsError(ValueError):
    """A setting that cannot be used. Its text is one sentence for a person, without key or path."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Which model to use, and the folder for what the page keeps.

    Without `model` there is none, and the caller plays the scripted one; without `data` it is the
    folder of that name beside the code.
    """

    base_url: str = "https://api.openai.com/v1"
    api_key: str = field(default="", repr=False)
    model: str = ""
    stream: bool = True
    keep_reasoning: bool = False
    data: str = ""

    def __post_init__(self) -> None:
        _check_url(self.base_url)
        _check_key(self.api_key)


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read `GLASSLOOP_*`, then the TOML file named by `GLASSLOOP_CONFIG`, then `OPENAI_*`.

    The first that names a setting wins; a blank variable names nothing. `SettingsError` for a file
    that cannot be read, an unknown name, or a value that cannot be used.
    """
    env = os.environ if environ is None else environ
    values = {name: env.get(variable, "").strip() for name, variable in _FALLBACKS.items()}
    found: dict[str, Any] = {name: value for name, value in values.items() if value}
    found.update(_from_file(env.get("GLASSLOOP_CONFIG", "").strip()))
    found.update(_from_environment(env))
    return Settings(**found)


def build_model(settings: Settings) -> Model | None:
    """The model behind the endpoint; None where no model is named. Sends nothing.

    `SettingsError` where OpenAI's own address lacks a key, or where proxy or certificates cannot be used.
    """
    if not settings.model:
        return None
    if not settings.api_key and urlsplit(settings.base_url).hostname == "api.openai.com":
        raise SettingsError("No key is set (GLASSLOOP_API_KEY).")
    # openai is slow to import, and a session on the scripted model never needs it.
    import openai

    from agent.model.openai_chat import OpenAIChat

    try:
        client = openai.OpenAI(
            base_url=settings.base_url,
            api_key=settings.api_key or "none",
            max_retries=0,
            timeout=_CLIENT_TIMEOUT_S,
        )
    except Exception:  # noqa: BLE001 - libraries read the environment here, each with errors of its own
        raise SettingsError(
            "The connection to the model cannot be set up; check the settings for proxies and"
            " certificates (such as HTTPS_PROXY and SSL_CERT_FILE)."
        ) from None
    return OpenAIChat(
        client=client,
        model=settings.model,
        stream=settings.stream,
        keep_reasoning=settings.keep_reasoning,
    )


def _from_environment(env: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for setting in fields(Settings):
        value = env.get(f"GLASSLOOP_{setting.name.upper()}", "").strip()
        if value:
            found[setting.name] = _switch(setting.name, value) if type(setting.default) is bool else value
    return found


def _switch(name: str, value: str) -> bool:
    try:
        return _SWITCH[value.lower()]
    except KeyError:
        raise SettingsError(f"GLASSLOOP_{name.upper()} must be true or false.") from None


def _from_file(path: str) -> dict[str, Any]:
    if not path:
        return {}
    found = _parse(path)
    known: dict[str, type] = {setting.name: type(setting.default) for setting in fields(Settings)}
    for name, value in found.items():
        if name not in known:
            raise SettingsError(f"The settings file names {_shown(name)}, which is not a setting.")
        if type(value) is not known[name]:
            kind = "true or false" if known[name] is bool else "a text"
            raise SettingsError(f"The setting {name} must be {kind}.")
    return found


def _parse(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        raise SettingsError("The file named by GLASSLOOP_CONFIG cannot be read.") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        place = re.search(r"at line \d+, column \d+", str(error))
        where = f" ({place.group()})" if place else ""
        raise SettingsError(f"The settings file is not valid TOML{where}.") from None


def _shown(name: str) -> str:
    return repr(name) if len(name) <= 40 else repr(name[:39] + "…")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    else:
        if usable and (parts.username is not None or parts.query or parts.fragment):
            raise SettingsError("The base URL must hold no user name, password, query or fragment.")
    if not usable or not url.isprintable() or " " in url:
        raise SettingsError("The base URL must look like https://host/v1 or http://host:port/v1.")


def _check_key(key: str) -> None:
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise SettingsError("The API key must be one word of plain letters, digits and signs.")
