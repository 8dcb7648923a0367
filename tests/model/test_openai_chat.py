"""OpenAIChat against a real socket: what is sent, what comes back, and every way in which it fails."""

import gzip
import json
import socket
import time
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import chain, repeat
from threading import Event
from typing import Any, cast
from urllib.parse import quote

import httpx2
import openai
import pytest

from agent.errors import ModelError
from agent.limits import Deadline, SystemClock
from agent.model import Reply, Usage, WireCall
from agent.model.failures import Unreadable
from agent.model.openai_chat import MAX_BODY_BYTES, MAX_ERROR_BYTES, OpenAIChat
from agent.model.quirks import Quirk
from tests.model import test_wire
from tests.model.server import KEY, Answer, Loopback, chunked, events, head, loopback, whole
from tools.base import Tool

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "2 + 3 and 4 * 5? é \ud800"}]
SCHEMA = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
CALLS = (WireCall("c1", "add", '{"a": 2}'), WireCall("c2", "mul", '{"a": 4}'))
SHORT_S = 0.5


class Schema:
    """The part of a tool that a model sees."""

    schema = SCHEMA


TOOLS = cast(list[Tool], [Schema()])


def wire_call(number: int, name: str, arguments: str) -> dict[str, Any]:
    return {
        "id": f"c{number}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
        "index": number - 1,
    }


TOOL_CALLS = [wire_call(1, "add", '{"a": 2}'), wire_call(2, "mul", '{"a": 4}')]


def completion(finish_reason: str = "stop", **message: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return {"id": "x", "choices": [choice], "usage": USAGE}


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


PROTOCOL = "provider_protocol"
HELLO_BYTES = json.dumps(completion(content="Hello")).encode()
HELLO = whole(HELLO_BYTES)
CHUNKS: list[dict[str, Any]] = [
    chunk(role="assistant", content=""),
    chunk(content="Let me "),
    chunk(content="see é."),
    chunk(tool_calls=[wire_call(1, "add", "")]),
    chunk(tool_calls=[{"index": 0, "function": {"arguments": '{"a": 2}'}}]),
    chunk(tool_calls=[wire_call(2, "mul", '{"a": 4}')]),
    chunk("tool_calls"),
    {"choices": [], "usage": USAGE},
]
CHUNK = events([chunk(content="Hel")], done=False)
ERROR_EVENT = b'event: error\ndata: {"message": "CANARY"}\n\n'
STREAM = events(CHUNKS)
STREAMED = Reply("Let me see é.", CALLS, Usage(5, 7), "tool_calls")


def failure(model: OpenAIChat, deadline: Deadline) -> ModelError:
    with pytest.raises(ModelError) as raised:
        model.reply(MESSAGES, TOOLS, deadline)
    assert "CANARY" not in str(raised.value)
    return raised.value


def still_usable(server: Loopback, client: openai.OpenAI, deadline: Deadline) -> bool:
    server.script(HELLO)
    return OpenAIChat(client, "m").reply(MESSAGES, [], deadline).text == "Hello"


def short() -> Deadline:
    clock = SystemClock()
    return Deadline(clock, clock.steady_s() + SHORT_S)


# --- what is sent, and what comes back ---


def test_a_whole_answer_with_two_calls(server: Loopback, client: openai.OpenAI, soon: Deadline):
    calls = [{name: value for name, value in call.items() if name != "index"} for call in TOOL_CALLS]
    server.script(whole(completion("tool_calls", content=None, tool_calls=calls)))
    model = OpenAIChat(client=client, model="m-1", params={"temperature": 0})
    assert model.reply(MESSAGES, TOOLS, soon) == Reply(None, CALLS, Usage(5, 7), "tool_calls")
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["content-type"] == "application/json"
    content = "2 + 3 and 4 * 5? é ?"
    assert request.body == {
        "temperature": 0,
        "model": "m-1",
        "messages": [{"role": "user", "content": content}],
        "tools": [SCHEMA],
    }


def test_a_stream_with_two_calls(server: Loopback, client: openai.OpenAI, soon: Deadline):
    server.script(chunked([STREAM]))
    deltas: list[str] = []
    model = OpenAIChat(client, "m", stream=True)
    assert model.reply(MESSAGES, TOOLS, soon, deltas.append) == STREAMED
    assert deltas == ["Let me ", "see é."]
    body = server.requests[0].body
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


def test_a_stream_split_at_every_byte(server: Loopback, client: openai.OpenAI, soon: Deadline):
    model = OpenAIChat(client, "m", stream=True)
    stream = events([chunk(content="é"), chunk("stop", tool_calls=[wire_call(1, "add", "{}")])])
    for cut in range(1, len(stream)):
        server.script(chunked([stream[:cut], stream[cut:]]))
        reply = model.reply(MESSAGES, TOOLS, soon)
        assert (reply.text, reply.calls) == ("é", (WireCall("c1", "add", "{}"),))


def test_a_stream_byte_by_byte(server: Loopback, client: openai.OpenAI, soon: Deadline):
    server.script(chunked([bytes([byte]) for byte in STREAM.replace(b"\n", b"\r\n")]))
    assert OpenAIChat(client, "m", stream=True).reply(MESSAGES, TOOLS, soon) == STREAMED


def test_deltas_arrive_while_the_answer_does(server: Loopback, client: openai.OpenAI, soon: Deadline):
    heard = Event()

    def pieces() -> Iterator[bytes]:
        start, first, *rest = chunked([CHUNK, STREAM]).pieces
        yield start + first
        assert heard.wait(5.0)
        yield from rest

    server.script(Answer(pieces()))
    reply = OpenAIChat(client, "m", stream=True).reply(MESSAGES, [], soon, lambda _: heard.set())
    assert reply.text == "HelLet me see é."


def test_a_whole_answer_is_one_delta(server: Loopback, client: openai.OpenAI, soon: Deadline):
    server.script(HELLO)
    deltas: list[str] = []
    OpenAIChat(client, "m", stream=True).reply(MESSAGES, [], soon, deltas.append)
    assert deltas == ["Hello"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("host", "keep", "lasts"),
    [("127.0.0.1", False, False), ("127.0.0.1", True, True), ("api.deepseek.com", False, True)],
)
def test_reasoning_lasts_where_a_server_wants_it(
    server: Loopback, client: openai.OpenAI, soon: Deadline, stream: bool, host: str, keep: bool, lasts: bool
):
    def to_loopback(request: httpx2.Request) -> None:
        request.url = request.url.copy_with(host="127.0.0.1", port=server.port)

    calls = {"tool_calls": TOOL_CALLS, "reasoning_content": "hm"}
    asks = chunked([events([chunk("tool_calls", **calls)])])
    server.script(asks if stream else whole(completion("tool_calls", **calls)), HELLO)
    with httpx2.Client(event_hooks={"request": [to_loopback]}) as http:
        named = openai.OpenAI(base_url=f"http://{host}:{server.port}/v1", api_key=KEY, http_client=http)
        model = OpenAIChat(named, "m", stream=stream, keep_reasoning=keep)
        reply = model.reply(MESSAGES, TOOLS, soon)
        assert (reply.extra_lasts, reply.reasoning) == (lasts, "hm")
        assert reply.extra == {"reasoning_content": "hm"}
        assert not model.reply(MESSAGES, [], soon).extra_lasts


def test_a_streams_reasoning_is_in_no_delta(server: Loopback, client: openai.OpenAI, soon: Deadline):
    text = ["<thi", "nk>h", "m</think", ">\n", "\nHel", "lo <"]
    server.script(chunked([events([*(chunk(content=part) for part in text), chunk("stop")])]))
    deltas: list[str] = []
    reply = OpenAIChat(client, "m", stream=True).reply(MESSAGES, [], soon, deltas.append)
    assert (reply.text, reply.reasoning, deltas) == ("Hello <", "hm", ["Hel", "lo <"])


def test_what_could_have_been_a_tag_is_heard_in_the_end(
    server: Loopback, client: openai.OpenAI, soon: Deadline
):
    server.script(chunked([events([chunk(content="<thi"), chunk("stop")])]))
    deltas: list[str] = []
    reply = OpenAIChat(client, "m", stream=True).reply(MESSAGES, [], soon, deltas.append)
    assert (reply.text, deltas) == ("<thi", ["<thi"])


def test_without_tools_none_are_named(server: Loopback, client: openai.OpenAI, soon: Deadline):
    server.script(HELLO)
    OpenAIChat(client, "m", params={"tool_choice": "required"}).reply(MESSAGES, [], soon)
    assert not server.requests[0].body.keys() & {"tools", "tool_choice", "stream"}


def test_params_replace_nothing_of_ours(server: Loopback, client: openai.OpenAI, soon: Deadline):
    server.script(HELLO)
    params: dict[str, Any] = {
        "model": "other",
        "messages": [],
        "tools": [],
        "stream": True,
        "stream_options": {},
        "seed": 1,
    }
    OpenAIChat(client, "m", params=params).reply(MESSAGES, TOOLS, soon)
    body = server.requests[0].body
    assert (body["model"], body["seed"], body["tools"]) == ("m", 1, [SCHEMA])
    assert body["messages"]
    assert not body.keys() & {"stream", "stream_options"}


def test_name_and_host(server: Loopback, client: openai.OpenAI):
    model = OpenAIChat(client, "m-1")
    assert (model.name, model.host) == ("m-1", f"127.0.0.1:{server.port}")


def test_a_connection_is_used_again(server: Loopback, client: openai.OpenAI, soon: Deadline):
    server.script(Answer([b"".join(chunked([STREAM]).pieces)]), HELLO, HELLO)
    for stream in (True, False, False):
        OpenAIChat(client, "m", stream=stream).reply(MESSAGES, [], soon)
    assert len(server.connections) == 1


def test_the_error_of_a_listener_is_its_own(server: Loopback, client: openai.OpenAI, soon: Deadline):
    def listener(_: str) -> None:
        raise UnicodeEncodeError("ascii", "é", 0, 1, "no")

    server.script(chunked([STREAM]))
    with pytest.raises(UnicodeEncodeError):
        OpenAIChat(client, "m", stream=True).reply(MESSAGES, [], soon, listener)
    assert still_usable(server, client, soon)


# --- statuses ---


@pytest.mark.parametrize(
    ("status", "code", "retry"),
    [
        (307, "provider_error", False),
        (400, "provider_error", False),
        (401, "provider_auth", False),
        (402, "provider_error", False),
        (403, "provider_auth", False),
        (404, "provider_error", False),
        (408, "provider_rate_limited", True),
        (409, "provider_error", True),
        (413, "context_overflow", False),
        (422, "provider_error", False),
        (429, "provider_rate_limited", True),
        (500, "provider_error", True),
        (503, "provider_error", True),
        (529, "provider_error", True),
    ],
)
def test_a_status_has_a_code(
    server: Loopback, client: openai.OpenAI, soon: Deadline, status: int, code: str, retry: bool
):
    body = {"error": {"message": f"Bad thing with {KEY} in /srv/app/main.py", "code": "x"}}
    server.script(whole(body, status, Location="http://127.0.0.1:1/v1/chat/completions"))
    error = failure(OpenAIChat(client, "m"), soon)
    assert (error.code, error.retry, len(server.requests)) == (code, retry, 1)
    assert "/srv" not in error.message
    assert still_usable(server, client, soon)


@pytest.mark.parametrize(
    ("status", "error", "code", "retry"),
    [
        (400, {"code": "context_length_exceeded", "message": "x"}, "context_overflow", False),
        (400, {"message": "This model's maximum context length is 8 tokens."}, "context_overflow", False),
        (400, {"message": "max_tokens must be at least 1"}, "provider_error", False),
        (429, {"code": "insufficient_quota", "message": "x"}, "provider_rate_limited", False),
        (429, {"code": "rate_limit_exceeded", "message": "x"}, "provider_rate_limited", True),
    ],
)
def test_an_error_body_refines_its_status(
    server: Loopback, client: openai.OpenAI, soon: Deadline, status: int, error: Any, code: str, retry: bool
):
    server.script(whole({"error": error}, status))
    raised = failure(OpenAIChat(client, "m"), soon)
    assert (raised.code, raised.retry) == (code, retry)


@pytest.mark.parametrize(
    ("headers", "low", "high"),
    [
        ({"Retry_After": "7"}, 7, 7),
        ({"Retry_After": "1.5"}, 1.5, 1.5),
        ({"Retry_After": "-3"}, 0, 0),
        ({"Retry_After_Ms": "250", "Retry_After": "7"}, 0.25, 0.25),
    ],
)
def test_the_servers_wish_to_wait(
    server: Loopback, client: openai.OpenAI, soon: Deadline, headers: dict[str, str], low: float, high: float
):
    server.script(whole({"error": {"message": "slow down"}}, 429, **headers))
    wait_s = failure(OpenAIChat(client, "m"), soon).retry_after_s
    assert wait_s is not None
    assert low <= wait_s <= high


def test_the_servers_wish_may_be_a_date(server: Loopback, client: openai.OpenAI, soon: Deadline):
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    server.script(whole({"error": {"message": "slow down"}}, 429, Retry_After=date))
    wait_s = failure(OpenAIChat(client, "m"), soon).retry_after_s
    assert wait_s is not None
    assert 3500 <= wait_s <= 3600


@pytest.mark.parametrize("value", ["soon", "nan", "inf", ""])
def test_a_wish_that_is_none(server: Loopback, client: openai.OpenAI, soon: Deadline, value: str):
    server.script(whole(b"", 503, Retry_After=value))
    assert failure(OpenAIChat(client, "m"), soon).retry_after_s is None


@pytest.mark.parametrize(
    "words",
    [
        f"Incorrect API key provided: {KEY}",
        f"Bad {' '.join(KEY)}!",
        f"Bad {quote(KEY, safe='')}!",
        f"Bad {quote(KEY, safe='').lower().replace('canary', 'CANARY').replace('key', 'Key')}!",
        f"Bad\n{KEY[:9]}\n\t{KEY[9:]}!",
        f"Bad {KEY[:9]}\u200b{KEY[9:]}!",
        f"{{'authorization': 'Bearer {KEY}'}}",
        "The token is CANARY-1234567890abcdef for you",
        "Wrong key=CANARY00112233",
        "sk-other-CANARY",
        "x" * 250 + f" {KEY}",
    ],
)
def test_a_key_never_comes_out(server: Loopback, client: openai.OpenAI, soon: Deadline, words: str):
    server.script(whole({"error": {"message": words}}, 400))
    assert "[removed]" in failure(OpenAIChat(client, "m"), soon).message or len(words) > 250


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("The model `gpt-4o-mini` does not exist", "The model `gpt-4o-mini` does not exist."),
        ("Unknown\u0000 field\r\n  'foo'\u202e", "Unknown field 'foo'."),
        ("No file /home/me/x.gguf here", "No file [path] here."),
        (r"No file C:\Users\me\x.gguf here", "No file [path] here."),
        ("No route POST /v1/chat/completion", "No route POST /v1/chat/completion."),
        ("y" * 400 + " end", "…"),
    ],
)
def test_a_refusal_shows_the_servers_words(
    server: Loopback, client: openai.OpenAI, soon: Deadline, words: str, shown: str
):
    server.script(whole({"error": {"message": words}}, 404))
    message = failure(OpenAIChat(client, "m"), soon).message
    assert message.startswith("The model's server refused the request (status 404): ")
    assert message.endswith(shown)
    assert len(message) < 360


@pytest.mark.parametrize("body", [{"detail": "No."}, {"error": "No."}, {"message": "No."}, b"No."])
def test_a_refusal_in_any_shape(server: Loopback, client: openai.OpenAI, soon: Deadline, body: Any):
    server.script(whole(body, 400))
    expected = "The model's server refused the request (status 400): No."
    assert failure(OpenAIChat(client, "m"), soon).message == expected


@pytest.mark.parametrize("body", [b"<html>CANARY</html>", b"", {"detail": [{"msg": "x"}]}, b"[1]"])
def test_a_refusal_without_words(server: Loopback, client: openai.OpenAI, soon: Deadline, body: Any):
    server.script(whole(body, 404))
    assert failure(OpenAIChat(client, "m"), soon).message == (
        "The model's server refused the request (status 404)."
    )


def test_a_model_without_tools_is_hinted_at(server: Loopback, client: openai.OpenAI, soon: Deadline):
    server.script(whole({"error": {"message": "registry/m does not support tools"}}, 400))
    error = failure(OpenAIChat(client, "m"), soon)
    assert error.message.endswith(" This model may not support tools.")


def test_a_redirect_is_not_followed(server: Loopback, client: openai.OpenAI, soon: Deadline):
    with loopback() as other:
        server.script(whole({}, 307, Location=f"{other.base_url}/chat/completions"))
        error = failure(OpenAIChat(client, "m"), soon)
        assert (error.code, error.retry, other.requests) == ("provider_error", False, [])


# --- answers that are none ---


FAILED = "The model's server answered with an error."
BROKEN_OFF = "The connection to the model's server broke off."

NO_ANSWERS: list[tuple[str, Answer, str, str, bool]] = [
    ("html", whole(b"<html>hi</html>", 200, "text/html"), PROTOCOL, Unreadable.WEB_PAGE, False),
    ("html as json", whole(b" <p>", 200), PROTOCOL, Unreadable.WEB_PAGE, False),
    ("text", whole(b"hello"), PROTOCOL, Unreadable.NOT_JSON, False),
    ("nothing", whole(b""), PROTOCOL, Unreadable.NOT_JSON, False),
    ("invalid utf-8", whole(b'{"id\xff": "\xfe"'), PROTOCOL, Unreadable.NOT_JSON, False),
    (
        "invalid utf-8 in a text",
        whole(HELLO_BYTES.replace(b"Hello", b"\xff")),
        PROTOCOL,
        Unreadable.NOT_JSON,
        False,
    ),
    ("too deep", whole(b"[" * 100_000), PROTOCOL, Unreadable.NOT_JSON, False),
    ("no object", whole([]), PROTOCOL, Unreadable.NO_OBJECT, False),
    ("no choices", whole({"choices": []}), PROTOCOL, Unreadable.NO_CHOICES, False),
    ("error in a 200", whole({"error": {"message": KEY}}), "provider_error", FAILED, False),
    (
        "lying gzip",
        whole(b"no gzip", Content_Encoding="gzip"),
        PROTOCOL,
        Unreadable.COMPRESSION_BROKEN,
        False,
    ),
    (
        "lying gzip, 500",
        whole(b"no", 500, Content_Encoding="gzip"),
        PROTOCOL,
        Unreadable.COMPRESSION_BROKEN,
        False,
    ),
    ("brotli", whole(b"x", Content_Encoding="br"), PROTOCOL, Unreadable.COMPRESSION_UNASKED, False),
    ("no delta", chunked([events([{"choices": [{"delta": 5}]}])]), PROTOCOL, Unreadable.NO_DELTA, False),
    ("cut inside an event", chunked([STREAM[:200]]), PROTOCOL, Unreadable.CUT_OFF, False),
    ("cut between events", chunked([CHUNK]), PROTOCOL, Unreadable.CUT_OFF, False),
    ("bad utf-8 event", chunked([CHUNK, b"data: \xff\n\n"]), PROTOCOL, Unreadable.NOT_JSON, False),
    ("bad json event", chunked([CHUNK, b"data: {\n\n"]), PROTOCOL, Unreadable.NOT_JSON, False),
    ("only done", chunked([b"data: [DONE]\n\n"]), PROTOCOL, Unreadable.NO_CHOICES, False),
    ("empty stream", chunked([b""]), PROTOCOL, Unreadable.CUT_OFF, False),
    ("error chunk", chunked([CHUNK, events([{"error": {"message": KEY}}])]), "provider_error", FAILED, False),
    ("error event", chunked([CHUNK, ERROR_EVENT]), "provider_error", FAILED, False),
    (
        "broken off",
        Answer([head(Content_Length="50") + b"{"], close=True),
        "provider_error",
        BROKEN_OFF,
        True,
    ),
    ("no answer at all", Answer([], close=True), "provider_error", BROKEN_OFF, True),
    ("not http", Answer([b"SSH-2.0\r\n\r\n"], close=True), "provider_error", BROKEN_OFF, True),
]


@pytest.mark.parametrize(
    ("answer", "code", "what", "retry"), [pytest.param(*row[1:], id=row[0]) for row in NO_ANSWERS]
)
def test_what_is_no_answer_fails_with_a_name(
    server: Loopback, client: openai.OpenAI, soon: Deadline, answer: Answer, code: str, what: str, retry: bool
):
    server.script(answer)
    error = failure(OpenAIChat(client, "m", stream=True), soon)
    assert (error.code, error.retry) == (code, retry)
    assert error.message == (f"The model's server sent {what}." if code == PROTOCOL else what)


def test_every_unreadable_answer_has_its_row():
    here: set[str] = {row[3] for row in NO_ANSWERS if row[2] == PROTOCOL}
    there: set[str] = {what for _, what in test_wire.NO_ANSWERS}
    assert here | there | {Unreadable.TOO_LARGE} == set(Unreadable)


def test_a_stream_that_ends_without_done(server: Loopback, client: openai.OpenAI, soon: Deadline):
    server.script(chunked([events(CHUNKS, done=False).removesuffix(b"\n")]))
    reply = OpenAIChat(client, "m", stream=True).reply(MESSAGES, [], soon)
    assert (reply.text, reply.notes) == ("Let me see é.", (Quirk.DONE_MISSING,))


def test_a_gzipped_answer(server: Loopback, client: openai.OpenAI, soon: Deadline):
    body = gzip.compress(json.dumps(completion(content="Hello")).encode())
    server.script(whole(body, Content_Encoding="gzip"))
    assert OpenAIChat(client, "m").reply(MESSAGES, [], soon).text == "Hello"


def test_a_body_has_a_limit(server: Loopback, client: openai.OpenAI, soon: Deadline):
    server.script(whole(gzip.compress(b" " * (MAX_BODY_BYTES + 1)), Content_Encoding="gzip"))
    assert failure(OpenAIChat(client, "m"), soon).code == "provider_protocol"
    assert still_usable(server, client, soon)


BOMB = gzip.compress(b" " * 50_000_000)
ENDLESS = chain([head(400, Transfer_Encoding="chunked")], repeat(b"8000\r\n" + b"x" * 0x8000 + b"\r\n"))
ENDLESS_REDIRECT = chain([head(307, Location="/x", Content_Length="9" * 12)], repeat(b"x" * 0x8000))
SILENT_GZIP = chain(
    [head(Content_Encoding="gzip", Content_Length="9" * 12) + gzip.compress(b"{}")], repeat(b"x" * 0x8000)
)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        pytest.param(Answer(ENDLESS), "provider_error", id="endless 400"),
        pytest.param(Answer(ENDLESS_REDIRECT), "provider_error", id="endless 307"),
        pytest.param(Answer(SILENT_GZIP), "provider_protocol", id="endless behind the end of a gzip"),
        pytest.param(whole(BOMB, 400, Content_Encoding="gzip"), "provider_error", id="400 bomb"),
        pytest.param(whole(BOMB, Content_Encoding="gzip"), "provider_protocol", id="200 bomb"),
        pytest.param(whole(BOMB, 200, "text/event-stream", Content_Encoding="gzip"), "provider_protocol"),
        pytest.param(
            whole(gzip.compress(BOMB), 400, Content_Encoding="gzip, gzip"),
            "provider_protocol",
            id="twice, 400",
        ),
        pytest.param(
            whole(gzip.compress(BOMB), Content_Encoding="gzip, gzip"), "provider_protocol", id="twice"
        ),
        pytest.param(whole(b"x", Content_Encoding="br"), "provider_protocol", id="not asked for"),
    ],
)
def test_no_body_fills_the_memory(
    server: Loopback, client: openai.OpenAI, soon: Deadline, answer: Answer, code: str
):
    server.script(answer)
    tracemalloc.start()
    try:
        error = failure(OpenAIChat(client, "m", stream=True), soon)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error.code == code
    assert peak < 3 * MAX_BODY_BYTES
    assert still_usable(server, client, soon)


def test_an_error_too_large_shows_no_words(server: Loopback, client: openai.OpenAI, soon: Deadline):
    server.script(whole({"error": {"message": "x" * MAX_ERROR_BYTES}}, 400))
    assert failure(OpenAIChat(client, "m"), soon).message == (
        "The model's server refused the request (status 400)."
    )


def test_a_gzipped_error_shows_its_words(server: Loopback, client: openai.OpenAI, soon: Deadline):
    server.script(whole(gzip.compress(b'{"error": {"message": "No."}}'), 400, Content_Encoding="gzip"))
    assert failure(OpenAIChat(client, "m"), soon).message.endswith(": No.")


def test_a_changed_key_is_used(server: Loopback, client: openai.OpenAI, soon: Deadline):
    model = OpenAIChat(client, "m")
    server.script(HELLO, HELLO)
    model.reply(MESSAGES, [], soon)
    client.api_key = "another-key"
    model.reply(MESSAGES, [], soon)
    assert server.requests[1].headers["authorization"] == "Bearer another-key"
    assert len(server.connections) == 1


# --- the key in an answer ---

ESCAPED = KEY.replace("/", "\\/")
UNICODE = "".join(f"\\u{ord(char):04X}" for char in KEY)
LEAKS: list[dict[str, Any]] = [
    {"content": f"It is {KEY}, {KEY}."},
    {"content": f"{ESCAPED} {KEY[:9]} {UNICODE}"},
    {"content": [{"type": "text", "text": KEY[:9]}, {"type": "text", "text": KEY[9:]}]},
    {"content": [{"type": "refusal", "refusal": KEY}]},
    {"refusal": f"Not with {KEY}"},
    {"reasoning_content": f"x{KEY}x", KEY: 1, "details": [{"a": [KEY], KEY: KEY}, 1, None, True]},
    {"tool_calls": [wire_call(1, "add", json.dumps({"a": KEY, KEY: ["x" + KEY]}))]},
    {"tool_calls": [wire_call(1, "add", f'{{"a": "{ESCAPED}", "b": "{UNICODE}"')]},
    {"tool_calls": [wire_call(1, "add", json.dumps({"a": json.dumps({"b": ESCAPED})}))]},
    {"tool_calls": [wire_call(1, KEY, "{}") | {"id": KEY}]},
    {"tool_calls": [wire_call(1, "add", "{}") | {"extra_content": {"signature": KEY}}]},
    {"content": f"<think>It is {KEY}</think>Hello"},
    {"tool_calls": [wire_call(1, "add", cast(str, {"a": [{"b": KEY, KEY: f'"{ESCAPED}"'}]}))]},
]


def assert_no_key(reply: Reply) -> None:
    shown = repr(reply).replace("\\", "")
    assert "[removed]" in shown
    assert KEY not in shown
    assert "u0043u0041u004e" not in shown.lower()


@pytest.mark.parametrize("message", LEAKS)
def test_the_key_is_taken_out_of_an_answer(
    server: Loopback, client: openai.OpenAI, soon: Deadline, message: dict[str, Any]
):
    body = json.dumps(completion(**message))
    deltas: list[str] = []
    for text in (body, body.replace("/", "\\/")):
        server.script(whole(text.encode()))
        assert_no_key(OpenAIChat(client, "m").reply(MESSAGES, [], soon, deltas.append))
    assert KEY not in "".join(deltas)


@pytest.mark.parametrize("message", LEAKS)
def test_the_key_is_taken_out_of_a_stream(
    server: Loopback, client: openai.OpenAI, soon: Deadline, message: dict[str, Any]
):
    stream = events([chunk("stop", **message)])
    server.script(chunked([stream[:90], stream[90:]]))
    deltas: list[str] = []
    assert_no_key(OpenAIChat(client, "m", stream=True).reply(MESSAGES, [], soon, deltas.append))
    assert KEY not in "".join(deltas)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 28, 29, 30, 100])
@pytest.mark.parametrize(
    "text",
    [
        f"It is {KEY}, {KEY}{KEY}.",
        f"{KEY[:20]}{KEY} {KEY[:-1]} s sk sk-",
        f"s{KEY[:5]}{KEY}",
        f"{KEY[:-1]}",
        "sssk-k",
        "Nothing at all.",
    ],
)
def test_the_key_is_taken_out_of_deltas(
    server: Loopback, client: openai.OpenAI, soon: Deadline, text: str, size: int
):
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    calls = [
        {"index": 0, "function": {"name": "add" if not at else "", "arguments": piece}}
        for at, piece in enumerate(pieces)
    ]
    chunks = [
        chunk(content=piece, tool_calls=[call], r=piece) for piece, call in zip(pieces, calls, strict=True)
    ]
    server.script(chunked([events([*chunks, chunk("stop")])]))
    deltas: list[str] = []
    reply = OpenAIChat(client, "m", stream=True).reply(MESSAGES, [], soon, deltas.append)
    expected = text.replace(KEY, "[removed]")
    assert (reply.text, "".join(deltas), reply.extra) == (expected, expected, {"r": expected})
    assert reply.calls[0].arguments == expected
    assert "" not in deltas


def test_an_ordinary_text_is_not_held_back(server: Loopback, client: openai.OpenAI, soon: Deadline):
    server.script(chunked([events([chunk(content="as"), chunk(content="k "), chunk("stop", content="is")])]))
    deltas: list[str] = []
    OpenAIChat(client, "m", stream=True).reply(MESSAGES, [], soon, deltas.append)
    assert deltas == ["a", "sk ", "i", "s"]


def test_a_short_key_is_a_word(server: Loopback, soon: Deadline):
    server.script(whole(completion(content="none of them")))
    with openai.OpenAI(base_url=server.base_url, api_key="none") as client:
        assert OpenAIChat(client, "m").reply(MESSAGES, [], soon).text == "none of them"


# --- no server, and no time ---


def test_a_server_that_is_not_there(soon: Deadline):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY) as client:
        error = failure(OpenAIChat(client, "m"), soon)
    expected = f"The model's server at 127.0.0.1:{port} could not be reached."
    assert (error.code, error.retry, error.message) == ("provider_error", True, expected)


@pytest.mark.parametrize("key", ["ключ-CANARY", "two\nlines-CANARY"])
def test_a_key_that_cannot_be_sent(server: Loopback, soon: Deadline, key: str):
    with openai.OpenAI(base_url=server.base_url, api_key=key) as client:
        error = failure(OpenAIChat(client, "m"), soon)
    assert (error.code, error.retry, server.requests) == ("provider_auth", False, [])


def test_a_host_that_is_no_name(soon: Deadline):
    with openai.OpenAI(base_url="http://a..b/v1", api_key=KEY) as client:
        assert failure(OpenAIChat(client, "m"), soon).code in ("provider_auth", "provider_error")


def test_without_time_nothing_is_sent(server: Loopback, client: openai.OpenAI):
    clock = SystemClock()
    error = failure(OpenAIChat(client, "m"), Deadline(clock, clock.steady_s()))
    assert (error.code, error.retry, server.requests) == ("provider_timeout", False, [])


DRIP = [b" "] * 200


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Answer([head(Content_Length="1000"), *DRIP], 0.02), id="body"),
        pytest.param(Answer([head().removesuffix(b"\r\n") + b"X-Slow: ", *DRIP], 0.02), id="headers"),
        pytest.param(Answer([b"HTTP/1.1 100 Continue\r\n\r\n"] * 200, 0.02), id="interim answers"),
        pytest.param(Answer([head(500, Content_Length="1000"), *DRIP], 0.02), id="body of an error"),
        pytest.param(chunked([b": still here\n\n"] * 200, 0.02), id="comments"),
        pytest.param(chunked([CHUNK] * 200, 0.02), id="deltas"),
        pytest.param(chunked([STREAM[:60], *[b"x"] * 200], 0.02), id="one endless event"),
    ],
)
def test_dripping_is_cut_at_the_deadline(
    server: Loopback, client: openai.OpenAI, soon: Deadline, answer: Answer
):
    server.script(answer)
    started = time.monotonic()
    error = failure(OpenAIChat(client, "m", stream=True), short())
    assert SHORT_S - 0.05 <= time.monotonic() - started < 2.0
    assert (error.code, error.retry) == ("provider_timeout", False)
    assert still_usable(server, client, soon)


@pytest.mark.parametrize("start", [b"", head(Content_Length="100") + b"{"])
def test_silence_is_cut_within_a_second_of_the_deadline(
    server: Loopback, client: openai.OpenAI, start: bytes
):
    server.script(Answer([start], hold=True))
    started = time.monotonic()
    assert failure(OpenAIChat(client, "m"), short()).code == "provider_timeout"
    assert time.monotonic() - started < 2.5


def test_who_is_stopped_hangs_up(server: Loopback, client: openai.OpenAI):
    """At the next byte, whatever it is: a server that writes on would keep others waiting."""
    stopped = Event()
    clock = SystemClock()
    started_s = clock.steady_s()
    deadline = Deadline(clock, started_s + 60.0, stopped.is_set)
    server.script(chunked([CHUNK, *[b": ping\n\n"] * 100], pause_s=0.05))
    with pytest.raises(ModelError):
        OpenAIChat(client, "m", stream=True).reply(MESSAGES, [], deadline, lambda _: stopped.set())
    assert clock.steady_s() - started_s < 2.0


def test_silence_after_done_is_not_waited_for(server: Loopback, client: openai.OpenAI, soon: Deadline):
    answer = chunked([STREAM])
    server.script(Answer(list(answer.pieces)[:-1], hold=True))
    started = time.monotonic()
    assert OpenAIChat(client, "m", stream=True).reply(MESSAGES, [], soon) == STREAMED
    assert time.monotonic() - started < 1.0
    assert still_usable(server, client, soon)
