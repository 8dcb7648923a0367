"""The server around the page, as a process of its own, over real sockets, with and without its guard."""

import asyncio
import base64
import hashlib
import json
import re
import socket
import subprocess
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any, get_args

import pytest
from starlette.applications import Starlette
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from agent.ui.server import AGENT_API_REFUSED, routes, security_headers
from tests.endpoints.server import free_port
from tests.ui.serving import How, Served, command, environ, serve

ANSWER_S = 10.0
START_S = 30.0
HOWS: tuple[How, ...] = get_args(How)
SCRIPT = """
import uuid
from pathlib import Path
from threading import Event

import streamlit as st

from agent.ui.server import lifespan, middleware, routes


@st.cache_resource(show_spinner=False)
def made():
    return uuid.uuid4().hex


if __name__ == "__main__":
    st.session_state["runs"] = st.session_state.get("runs", 0) + 1
    st.text(f"{st.session_state['runs']} {made()}")
    while "endless" in st.query_params:
        Event().wait(0.01)

app = st.App(__file__, GUARD routes=routes(), lifespan=lifespan(Path(__file__).with_name("closed").touch))
"""


def write_script(folder: Path, guarded: bool = True) -> Path:
    script = folder / "page.py"
    script.write_text(SCRIPT.replace("GUARD", "middleware=middleware()," if guarded else ""))
    return script


@pytest.fixture(scope="module")
def settings_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("settings") / "settings.toml"
    path.touch()
    return path


@pytest.fixture(scope="module", params=HOWS)
def page(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, settings_file: Path
) -> Iterator[Served]:
    """The page behind its guard, started in either way. It lies in a repository with a public remote."""
    folder = repository(tmp_path_factory.mktemp("page"))
    env = {"GLASSLOOP_CONFIG": str(settings_file)}
    with serve(write_script(folder), how=request.param, env=env) as served:
        yield served


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The same page without its guard: what Streamlit does by itself."""
    folder = repository(tmp_path_factory.mktemp("bare"))
    with serve(write_script(folder, guarded=False), how="uvicorn") as served:
        yield served


def repository(folder: Path) -> Path:
    """Make the folder a git repository that follows a remote, which is what Streamlit tells about."""
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    for arguments in (
        ("init", "--quiet", "--initial-branch", "main"),
        (*author, "commit", "--quiet", "--allow-empty", "--message", "first"),
        ("remote", "add", "origin", "https://github.com/example/private.git"),
        ("update-ref", "refs/remotes/origin/main", "HEAD"),
        ("branch", "--quiet", "--set-upstream-to", "origin/main"),
    ):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    return folder


class Session:
    """A client of the page that is not a browser."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def send(self, message: BackMsg) -> None:
        self.socket.send(message.SerializeToString())

    def until(self, kind: str) -> list[ForwardMsg]:
        """What comes, up to the first message of this kind."""
        messages: list[ForwardMsg] = []
        while not messages or messages[-1].WhichOneof("type") != kind:
            data = self.socket.recv(ANSWER_S)
            assert isinstance(data, bytes)
            messages.append(ForwardMsg.FromString(data))
        return messages

    def answers(self) -> list[ForwardMsg]:
        """What still comes for all that was sent; Streamlit answers in order, but for what it does beside."""
        messages: list[ForwardMsg] = []
        for _ in range(2):
            self.send(BackMsg(app_heartbeat=True))
            messages += self.until("heartbeat_ack")[:-1]
        return messages

    def rerun(self) -> tuple[int, str]:
        """The number of this run in its session, and the object that is cached for all of them."""
        self.send(rerun_script())
        texts = [m.delta.new_element.text.body for m in self.until("script_finished") if m.HasField("delta")]
        self.answers()
        number, made = texts[0].split()
        return int(number), made


@contextmanager
def session(served: Served) -> Generator[Session]:
    address = f"{served.url.replace('http', 'ws')}/_stcore/stream"
    with connect(address, proxy=None, max_size=None) as socket:
        yield Session(socket)


def rerun_script(query_string: str = "") -> BackMsg:
    return BackMsg(rerun_script=ClientState(query_string=query_string))


def deferred_download() -> BackMsg:
    message = BackMsg()
    message.backend_operation_request.deferred_file.file_id = "1"
    return message


def upload() -> BackMsg:
    message = BackMsg()
    message.file_urls_request.file_names.append("a.txt")
    return message


# What the page never sends, and the kind of message that Streamlit alone would answer.
FORBIDDEN: list[tuple[BackMsg, set[str]]] = [
    (BackMsg(clear_cache=True), set()),
    (BackMsg(set_run_on_save=True), {"session_status_changed"}),
    (BackMsg(load_git_info=True), {"git_info_changed"}),
    (upload(), {"file_urls_response"}),
    (deferred_download(), {"backend_operation_response"}),
]
forbidden = pytest.mark.parametrize(
    ("message", "alone"), FORBIDDEN, ids=[str(message.WhichOneof("type")) for message, _ in FORBIDDEN]
)


@forbidden
def test_a_message_that_is_not_the_pages_does_nothing(
    page: Served, message: BackMsg, alone: set[str]
) -> None:
    with session(page) as client:
        number, made = client.rerun()
        client.send(message)
        assert client.answers() == []
        assert client.rerun() == (number + 1, made)


@forbidden
def test_streamlit_alone_obeys_that_message(bare: Served, message: BackMsg, alone: set[str]) -> None:
    with session(bare) as client:
        number, made = client.rerun()
        client.send(message)
        assert {answer.WhichOneof("type") for answer in client.answers()} == alone
        after = client.rerun()
    if message.clear_cache:
        assert after[0] == 1
        assert after[1] != made
    else:
        assert after == (number + 1, made)


def test_no_session_loses_what_another_asks_to_clear(page: Served) -> None:
    with session(page) as mine, session(page) as other:
        number, made = mine.rerun()
        other.send(BackMsg(clear_cache=True))
        other.rerun()
        assert mine.rerun() == (number + 1, made)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xff\xff\xff",
        rerun_script().SerializeToString()[:-1] + b"\x80",
        "a text",
        rerun_script("x" * 1_000_001).SerializeToString(),
    ],
    ids=["empty", "garbage", "cut short", "text", "too long"],
)
def test_a_frame_that_cannot_be_a_message_leaves_the_session_as_it_was(
    page: Served, frame: bytes | str
) -> None:
    with session(page) as client:
        number, made = client.rerun()
        client.socket.send(frame)
        assert client.rerun() == (number + 1, made)
    assert "Traceback" not in page.log.read_text()


@pytest.mark.parametrize("frame", [b"\xff\xff\xff", "a text"], ids=["garbage", "text"])
def test_streamlit_alone_ends_the_connection_at_that_frame(bare: Served, frame: bytes | str) -> None:
    with session(bare) as client:
        client.rerun()
        client.socket.send(frame)
        with pytest.raises(ConnectionClosed):
            client.until("script_finished")


def test_the_signs_of_life_and_the_stop_of_the_page_arrive(page: Served) -> None:
    with session(page) as client:
        client.send(BackMsg(app_heartbeat=True))
        client.until("heartbeat_ack")
        client.send(rerun_script("endless=1"))
        client.until("delta")
        client.send(BackMsg(stop_script=True))
        client.until("script_finished")


@contextmanager
def outside() -> Generator[tuple[str, list[object]]]:
    """A proxy to nowhere, through which a server would reach the internet; and who asked it."""
    asked: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            with suppress(OSError):
                while True:
                    connection, address = listener.accept()
                    asked.append(address)
                    connection.close()

        thread = Thread(target=refuse)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(ANSWER_S)


@pytest.mark.parametrize("guarded", [True, False])
def test_the_socket_of_another_sites_page_is_refused_and_nobody_is_asked(
    tmp_path: Path, guarded: bool
) -> None:
    """Streamlit alone refuses it too, once it has asked the internet for this machine's address."""
    with (
        outside() as (proxy, asked),
        serve(write_script(tmp_path, guarded), env={"http_proxy": proxy, "https_proxy": proxy}) as served,
    ):
        for origin in (
            "http://evil.example",
            "http://localhost:1",
            f"http://x@127.0.0.1:{served.port}",
            "null",
        ):
            if guarded or origin == "http://evil.example":
                with pytest.raises(InvalidStatus, match="403"):
                    connect(f"ws://127.0.0.1:{served.port}/_stcore/stream", origin=Origin(origin), proxy=None)
        own = Origin(served.url)
        with connect(f"ws://127.0.0.1:{served.port}/_stcore/stream", origin=own, proxy=None):
            pass
        assert bool(asked) is not guarded


@pytest.mark.parametrize("path", ["/auth/login", "/auth/logout", "/oauth2callback"])
def test_there_is_no_login(page: Served, path: str) -> None:
    assert page.get(path).status == 404


def test_a_fault_in_a_callback_is_not_logged_with_its_traceback(tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    button = 'st.button("x", key="x", on_click=lambda: {}["a secret"])'
    script.write_text(
        SCRIPT.replace("GUARD", "middleware=middleware(),").replace("    while", f"    {button}\n    while")
    )
    config = tmp_path / ".streamlit"
    config.mkdir()
    (config / "config.toml").write_text("[logger]\nenableRich = false\n")
    with serve(script) as served, session(served) as one:
        one.send(rerun_script())
        drawn = [m.delta.new_element.button.id for m in one.until("script_finished") if m.HasField("delta")]
        state = ClientState()
        state.widget_states.widgets.add(id=next(filter(None, drawn)), trigger_value=True)
        one.send(BackMsg(rerun_script=state))
        one.until("script_finished")
        one.answers()
        log = served.log.read_text()
    assert "a secret" not in log
    assert "Traceback" not in log


def asset(served: Served) -> str:
    found = re.search(r"static/js/index\.[\w-]+\.js", served.get("/").body.decode())
    assert found
    return f"/{found.group()}"


def test_every_answer_has_the_security_headers(page: Served) -> None:
    expected = {
        "/": 200,
        asset(page): 200,
        "/_stcore/health": 200,
        "/_stcore/host-config": 200,
        "/readyz": 200,
        "/no/such/page": 200,
        "/_stcore/metrics": 404,
        "/media/none.png": 404,
        "//elsewhere/x": 400,
    }
    answers = {path: page.get(path) for path in expected}
    assert {path: answer.status for path, answer in answers.items()} == expected
    for name, value in security_headers().items():
        assert {path: a.headers.get_all(name) for path, a in answers.items()} == {
            p: [value] for p in expected
        }


def policy() -> dict[str, set[str]]:
    parts = [part.split() for part in security_headers()["Content-Security-Policy"].split("; ")]
    return {name: set(sources) for name, *sources in parts}


def test_the_policy_names_the_scripts_of_the_page_and_no_others(page: Served) -> None:
    inline = re.findall(r"<script>(.*?)</script>", page.get("/").body.decode(), re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in inline]
    assert policy()["script-src"] == {"'self'", *(f"'sha256-{digest}'" for digest in digests)}


def test_the_policy_lets_nothing_out_and_nobody_around() -> None:
    sources = policy()
    assert sources.pop("img-src") == {"'self'", "data:", "blob:"}
    for name in ("default-src", "object-src", "frame-ancestors", "base-uri", "form-action", "worker-src"):
        assert sources.pop(name) == {"'none'"}
    assert sources.keys() == {"script-src", "style-src", "font-src", "connect-src"}
    assert all("'self'" in found and not any(":/" in part for part in found) for found in sources.values())


@pytest.mark.parametrize(
    "path",
    [
        "metrics",
        "metrics/",
        "agent/openapi.json",
        "agent/interact",
        "agent/mcp",
        "agent%2Fmcp",
        "upload_file/a/b",
        "script-health-check",
        "",
    ],
)
def test_the_rest_of_streamlits_api_is_closed(page: Served, path: str) -> None:
    answer = page.get(f"/_stcore/{path}")
    assert (answer.status, answer.body) == (404, b"Not Found")
    assert page.get(f"/a/page/_stcore/{path}").body == b"Not Found"


@pytest.mark.parametrize("path", ["metrics", "agent/openapi.json"])
def test_streamlit_alone_leaves_it_open(bare: Served, path: str) -> None:
    assert bare.get(f"/_stcore/{path}").status == 200


def test_the_page_is_ready_while_its_settings_can_be_read(page: Served, settings_file: Path) -> None:
    def readiness() -> tuple[int, Any, str | None]:
        answer = page.get("/readyz")
        return answer.status, json.loads(answer.body), answer.headers["Cache-Control"]

    assert readiness() == (200, {"ready": True}, "no-store")
    settings_file.write_text("model = 3")
    assert readiness() == (503, {"ready": False}, "no-store")
    settings_file.write_text("")
    assert readiness() == (200, {"ready": True}, "no-store")


def test_without_a_running_streamlit_it_is_not_ready() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": "/readyz",
        "query_string": b"",
        "headers": [],
    }

    async def ask() -> None:
        await Starlette(routes=routes())(scope, receive, send)

    # In a thread: beside the tests in a browser this one already has a loop that runs.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, ask()).result()
    assert sent[0]["status"] == 503
    assert json.loads(sent[1]["body"]) == {"ready": False}


@pytest.mark.parametrize("how", HOWS)
def test_the_end_of_the_server_closes_what_it_was_given(tmp_path: Path, how: How) -> None:
    closed = tmp_path / "closed"
    with serve(write_script(tmp_path), how=how) as served, session(served) as client:
        client.rerun()
        assert not closed.exists()
    assert closed.exists()


@pytest.mark.parametrize(
    ("how", "flags", "env", "file"),
    [
        ("streamlit", ("--server.enableAgentApi=true",), {}, ""),
        ("streamlit", (), {"STREAMLIT_SERVER_ENABLE_AGENT_API": "true"}, ""),
        ("uvicorn", (), {}, "server.enableAgentApi = true"),  # the one place that it reads
    ],
    ids=["flag", "environment", "file"],
)
def test_with_the_agent_api_on_it_does_not_start(
    tmp_path: Path, how: How, flags: tuple[str, ...], env: dict[str, str], file: str
) -> None:
    (tmp_path / ".streamlit").mkdir()
    (tmp_path / ".streamlit" / "config.toml").write_text(file)
    done = subprocess.run(
        command(write_script(tmp_path), free_port(), how, flags),
        env=environ(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 3, done.stdout
    assert done.stdout.count(AGENT_API_REFUSED) == 1
    assert "Traceback" not in done.stdout
    assert not (tmp_path / "closed").exists()
