"""Chromium, and the page as it is served."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.visits import PAGE, Talks, Visitor, chromium, launch, talking, visiting
from tests.support import require
from tests.ui.serving import Served, serve


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = require(chromium(), "The page is tried in Chromium, which is not installed.")
    with sync_playwright() as playwright:
        browser = launch(playwright, path)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of the served page."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def site(data: Path) -> Iterator[Served]:
    """The page on the embedded model, as `streamlit run` serves it."""
    with serve(PAGE, env={"GLASSLOOP_DATA": str(data)}) as served:
        yield served


@pytest.fixture(scope="module")
def talks() -> Iterator[Talks]:
    with talking() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def real_site(talks: Talks, data: Path) -> Iterator[Served]:
    """The page on a model behind `talks`."""
    env = {
        "GLASSLOOP_BASE_URL": f"http://127.0.0.1:{talks.port}/v1",
        "GLASSLOOP_API_KEY": "sk-planted-secret",
        "GLASSLOOP_MODEL": "talks",
        "GLASSLOOP_DATA": str(data),
    }
    with serve(PAGE, env=env) as served:
        yield served


@pytest.fixture
def visitor(browser: Browser, site: Served) -> Iterator[Visitor]:
    with visiting(browser, site) as one:
        yield one
