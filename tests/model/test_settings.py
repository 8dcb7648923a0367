import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.model.openai_chat import OpenAIChat
from agent.settings import Settings, SettingsError, build_model, load_settings

URL = "http://127.0.0.1:8080/v1"


def file(folder: Path, text: str) -> dict[str, str]:
    path = folder / "glassloop.toml"
    path.write_text(text, encoding="utf-8")
    return {"GLASSLOOP_CONFIG": str(path)}


def test_nothing_set_is_no_model():
    assert load_settings({"GLASSLOOP_MODEL": " "}) == Settings()
    assert build_model(Settings()) is None


def test_the_environment():
    env = {
        "GLASSLOOP_BASE_URL": URL,
        "GLASSLOOP_API_KEY": " k-1\n",
        "GLASSLOOP_MODEL": "m",
        "GLASSLOOP_STREAM": "No",
        "OPENAI_BASE_URL": "http://other/v1",
        "OPENAI_API_KEY": "k-2",
    }
    assert load_settings(env) == Settings(URL, "k-1", "m", False)


def test_the_names_of_openai_are_a_fallback():
    settings = load_settings({"OPENAI_BASE_URL": URL, "OPENAI_API_KEY": "k-2"})
    assert (settings.base_url, settings.api_key) == (URL, "k-2")


def test_the_environment_wins_over_the_file_and_the_file_over_openai(tmp_path: Path):
    env = file(tmp_path, f'base_url = "{URL}"\napi_key = "k-file"\nmodel = "m-file"\nstream = false\n')
    settings = load_settings(env | {"GLASSLOOP_MODEL": "m-env", "OPENAI_API_KEY": "k-openai"})
    assert settings == Settings(URL, "k-file", "m-env", False)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("modle = 1", "The settings file names 'modle', which is not a setting."),
        ("model = 1", "The setting model must be a text."),
        ("stream = 1", "The setting stream must be true or false."),
        ('api_key = "sk-CANARY', "The settings file is not valid TOML."),
        ('x = 1\napi_key = sk-CANARY"', "The settings file is not valid TOML (at line 2, column 11)."),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, sentence: str):
    with pytest.raises(SettingsError) as raised:
        load_settings(file(tmp_path, text))
    assert str(raised.value) == sentence


def test_a_file_that_cannot_be_read(tmp_path: Path):
    (tmp_path / "latin").write_bytes(b"\xff")
    for path in (tmp_path, tmp_path / "none", tmp_path / "latin"):
        with pytest.raises(SettingsError, match=r"^The file named by GLASSLOOP_CONFIG cannot be read\.$"):
            load_settings({"GLASSLOOP_CONFIG": str(path)})


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8080",
        "ftp://host/v1",
        "http://",
        "http://:80/v1",
        "http://host:99999/v1",
        "http://[::1/v1",
        "http://ho st/v1",
        "http://user:CANARY@host/v1",
        "http://user@host/v1",
        "http://host/v1?key=CANARY",
        "http://host/v1#CANARY",
    ],
)
def test_a_url_that_cannot_be_used(url: str):
    with pytest.raises(SettingsError) as raised:
        load_settings({"GLASSLOOP_BASE_URL": url})
    assert str(raised.value).startswith("The base URL must ")
    assert "CANARY" not in str(raised.value)


@pytest.mark.parametrize("key", ["ключ", "two words", "two\nlines"])
def test_a_key_that_cannot_be_sent(key: str):
    with pytest.raises(SettingsError, match="The API key must be"):
        load_settings({"GLASSLOOP_API_KEY": key})


def test_a_switch_that_is_none():
    with pytest.raises(SettingsError, match=r"^GLASSLOOP_STREAM must be true or false\.$"):
        load_settings({"GLASSLOOP_STREAM": "maybe"})


def test_the_key_is_not_shown():
    assert "CANARY" not in repr(Settings(api_key="CANARY"))


def test_a_named_model_is_built():
    model = build_model(Settings(URL, "", "m-1", False))
    assert isinstance(model, OpenAIChat)
    assert (model.name, model.host) == ("m-1", "127.0.0.1:8080")


def test_the_address_of_openai_needs_a_key():
    for url in (Settings().base_url, "https://api.openai.com/v1/"):
        with pytest.raises(SettingsError, match=r"^No key is set \(GLASSLOOP_API_KEY\)\.$"):
            build_model(Settings(url, "", "m"))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HTTPS_PROXY", "foo://CANARY"),
        ("HTTP_PROXY", "CANARY://x:1"),
        ("SSL_CERT_FILE", "/CANARY/ca.pem"),
        ("SSL_CERT_FILE", __file__),
    ],
)
def test_a_connection_that_cannot_be_set_up(variable: str, value: str):
    program = f"from agent.settings import *; build_model(Settings({URL!r}, 'k-1', 'm'))"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {variable: value},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("agent.settings.SettingsError: The connection to the model cannot be set up; ")
    assert "CANARY" not in ended.stderr
