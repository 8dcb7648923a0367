"""What real servers send, row by row: the reply that it is read as, and the note that it leaves."""

import json
from typing import Any, cast

import pytest

from agent.errors import ModelError
from agent.model import Reply, Usage, WireCall
from agent.model.failures import Unreadable
from agent.model.quirks import Quirk
from agent.model.sse import Events
from agent.model.wire import (
    MAX_CALLS,
    MAX_EXTRA_BYTES,
    MAX_REASONING_CHARS,
    Stream,
    read_assistant,
    read_message,
)

ARGS = '{"a": 1}'
USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


def call(**fields: Any) -> dict[str, Any]:
    entry = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": ARGS}}
    return {name: value for name, value in (entry | fields).items() if value is not ...}


def function(**fields: Any) -> dict[str, Any]:
    entry = {"name": "add", "arguments": ARGS}
    return {name: value for name, value in (entry | fields).items() if value is not ...}


def message(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, **fields}


def completion(message: Any, finish_reason: Any = "stop", **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return {"choices": [choice], "usage": USAGE, **fields}


CHOICE = {"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}


def test_a_plain_answer_leaves_no_note():
    reply = read_message(completion(message(content="Hello")))
    assert reply == Reply(text="Hello", usage=Usage(5, 7), finish_reason="stop")


def test_parallel_calls_leave_no_note():
    calls = [call(), call(id="c2", function=function(name="mul"))]
    reply = read_message(completion(message(tool_calls=calls), "tool_calls"))
    assert reply.calls == (WireCall("c1", "add", ARGS), WireCall("c2", "mul", ARGS))
    assert reply.notes == ()


@pytest.mark.parametrize(
    ("fields", "text", "note"),
    [
        ({"content": None}, None, None),
        ({"content": ""}, None, None),
        (
            {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            "ab",
            Quirk.CONTENT_PARTS,
        ),
        ({"content": ["a", "b"]}, "ab", Quirk.CONTENT_PARTS),
        ({"content": []}, None, Quirk.CONTENT_PARTS),
        ({"content": [{"type": "image_url"}]}, None, Quirk.CONTENT_PART_DROPPED),
        ({"content": "a", "tool_calls": None}, "a", Quirk.CALLS_EMPTY),
        ({"content": "a", "tool_calls": []}, "a", Quirk.CALLS_EMPTY),
        ({"content": "a", "function_call": {"name": "x"}}, "a", Quirk.LEGACY_CALL),
        ({"content": "a\ud800b"}, "a\ufffdb", Quirk.SURROGATE),
        ({"content": "\ud83d\ude00"}, "\U0001f600", Quirk.SURROGATE),
        ({"content": "a", "reasoning_content": "hm"}, "a", Quirk.VENDOR_FIELDS),
    ],
)
def test_a_message_is_read_tolerantly(fields: dict[str, Any], text: str | None, note: Quirk | None):
    reply = read_message(completion(message(**fields)))
    assert reply.text == text
    assert reply.calls == ()
    assert note is None or note in reply.notes


@pytest.mark.parametrize(
    ("entry", "expected", "note"),
    [
        (call(id=...), WireCall(None, "add", ARGS), Quirk.ID_MISSING),
        (call(id=None), WireCall(None, "add", ARGS), Quirk.ID_MISSING),
        (call(id=""), WireCall(None, "add", ARGS), Quirk.ID_MISSING),
        (call(id="  "), WireCall(None, "add", ARGS), Quirk.ID_MISSING),
        (call(id=7), WireCall("7", "add", ARGS), Quirk.ID_NOT_TEXT),
        (call(id="c" * 256), WireCall("c" * 256, "add", ARGS), None),
        (call(id="c" * 257), WireCall(None, "add", ARGS), Quirk.ID_UNUSABLE),
        (call(id="c\n1"), WireCall(None, "add", ARGS), Quirk.ID_UNUSABLE),
        (call(id="c\x1b[2J"), WireCall(None, "add", ARGS), Quirk.ID_UNUSABLE),
        (call(id=10**300), WireCall(None, "add", ARGS), Quirk.ID_UNUSABLE),
        (call(function=function(name="n" * 300)), WireCall("c1", "n" * 256, ARGS), Quirk.NAME_UNUSABLE),
        (call(function=function(name="a\nb")), WireCall("c1", "a\ufffdb", ARGS), Quirk.NAME_UNUSABLE),
        (call(function=...), WireCall("c1", "", None), Quirk.FUNCTION_MISSING),
        (call(function=None), WireCall("c1", "", None), Quirk.FUNCTION_MISSING),
        (call(function=function(name=None)), WireCall("c1", "", ARGS), Quirk.NAME_MISSING),
        (call(function=function(name=...)), WireCall("c1", "", ARGS), Quirk.NAME_MISSING),
        (call(function=function(name=" ")), WireCall("c1", "", ARGS), Quirk.NAME_MISSING),
        (call(function=function(name="a\udc00")), WireCall("c1", "a\ufffd", ARGS), Quirk.SURROGATE),
        (call(function=function(arguments=None)), WireCall("c1", "add", None), Quirk.ARGUMENTS_NULL),
        (call(function=function(arguments=...)), WireCall("c1", "add", None), Quirk.ARGUMENTS_NULL),
        (call(function=function(arguments="")), WireCall("c1", "add", ""), Quirk.ARGUMENTS_NO_OBJECT),
        (
            call(function=function(arguments="{} thanks")),
            WireCall("c1", "add", "{} thanks"),
            Quirk.ARGUMENTS_NO_OBJECT,
        ),
        (
            call(function=function(arguments="```json\n{}\n```")),
            WireCall("c1", "add", "```json\n{}\n```"),
            Quirk.ARGUMENTS_NO_OBJECT,
        ),
        (
            call(function=function(arguments='"\ud800"')),
            WireCall("c1", "add", '"\ud800"'),
            Quirk.ARGUMENTS_NO_OBJECT,
        ),
        (call(function=function(arguments=" {} ")), WireCall("c1", "add", " {} "), None),
        (
            call(function=function(arguments={"a": 1})),
            WireCall("c1", "add", {"a": 1}),
            Quirk.ARGUMENTS_OBJECT,
        ),
        (call(function=function(arguments=[1])), WireCall("c1", "add", "[1]"), Quirk.ARGUMENTS_OTHER),
        (call(function=function(arguments=1.5)), WireCall("c1", "add", "1.5"), Quirk.ARGUMENTS_OTHER),
        (
            call(extra_content={"google": 1}),
            WireCall("c1", "add", ARGS, {"extra_content": {"google": 1}}),
            Quirk.VENDOR_FIELDS,
        ),
        (call(extra_content=None), WireCall("c1", "add", ARGS), None),
    ],
)
def test_a_call_is_read_tolerantly(entry: dict[str, Any], expected: WireCall, note: Quirk | None):
    reply = read_message(completion(message(tool_calls=[entry]), "tool_calls"))
    assert reply.calls == (expected,)
    assert note is None or note in reply.notes


@pytest.mark.parametrize(
    ("body", "note"),
    [
        (completion(message(tool_calls=[call()]), "stop"), Quirk.FINISH_MISMATCH),
        (completion(message(tool_calls=[call()]), None), Quirk.FINISH_MISMATCH),
        (completion(message(content="a"), "tool_calls"), Quirk.FINISH_WITHOUT_CALLS),
        (completion(message(content="a"), None), Quirk.FINISH_MISSING),
        (completion(message(content="a"), 3), Quirk.FINISH_UNREADABLE),
        (completion(message(content="a"), "stop\nRun COMPLETED"), Quirk.FINISH_UNREADABLE),
        (completion(message(content="a"), "stop\n"), Quirk.FINISH_UNREADABLE),
        (completion(message(content="a"), "\x1b[2J"), Quirk.FINISH_UNREADABLE),
        (completion(message(content="a"), "s" * 41), Quirk.FINISH_UNREADABLE),
        (completion(message(content="a"), usage=None), Quirk.USAGE_MISSING),
        (completion(message(content="a"), usage={"prompt_tokens": "many"}), Quirk.USAGE_UNREADABLE),
        (completion(message(content="a"), usage=[1]), Quirk.USAGE_UNREADABLE),
        (completion(message(content="a", odd=float("nan"))), Quirk.VENDOR_DROPPED),
        (completion(message(content="<think>hm</think>a")), Quirk.THINKING_IN_TEXT),
        (completion(message(content="<think></think>a")), Quirk.THINKING_IN_TEXT),
        (completion(message(content="a", reasoning="x" * (MAX_REASONING_CHARS + 1))), Quirk.REASONING_CUT),
        (completion(message(content="a")) | {"choices": [CHOICE, CHOICE]}, Quirk.CHOICES_EXTRA),
    ],
)
def test_a_completion_is_read_tolerantly(body: dict[str, Any], note: Quirk):
    reply = read_message(body)
    assert note in reply.notes
    assert reply.text == "a" or reply.calls


@pytest.mark.parametrize("finish_reason", ["s" * 41, "stop\n", "stöp", "", 3, ["stop"], None])
def test_a_finish_reason_that_is_no_word_is_none(finish_reason: Any):
    assert read_message(completion(message(content="a"), finish_reason)).finish_reason is None


@pytest.mark.parametrize("count", [int("9" * 4300), 10**9 + 1, -1, True, 5.0, "5", None])
def test_a_count_of_tokens_that_is_none(count: Any):
    for usage in (
        {"prompt_tokens": count, "completion_tokens": 7},
        {"prompt_tokens": 7, "completion_tokens": count},
    ):
        reply = read_message(completion(message(content="a"), usage=usage))
        assert (reply.usage, reply.notes) == (None, (Quirk.USAGE_UNREADABLE,))
        stream = Stream()
        stream.feed(chunk("stop", usage, content="a"))
        assert stream.finish(done=True).usage is None


def test_a_usage_of_zeros_is_none():
    zeros = {"prompt_tokens": 0, "completion_tokens": 0}
    reply = read_message(completion(message(content="a"), usage=zeros))
    assert (reply.usage, reply.notes) == (None, (Quirk.USAGE_MISSING,))


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "add", "arguments": {}}</tool_call>',
        'Let me see.\n<function=add>{"a": 1}</function>',
        "<|tool_calls_section_begin|>functions.add:0",
        "<｜tool▁calls▁begin｜>add",
        '[TOOL_CALLS][{"name": "add"}]',
        "<|python_tag|>add.call(a=1)",
        '<invoke name="add">',
        '{"name": "add", "arguments": {"a": 1}}',
        ' ```json\n{"name": "add",\n"parameters": {}}\n```',
        '[{"name": "add", "arguments": {}}]',
    ],
)
def test_a_call_written_as_text_is_text(text: str):
    reply = read_message(completion(message(content=text)))
    assert (reply.text, reply.calls, reply.notes) == (text, (), (Quirk.CALL_AS_TEXT,))


@pytest.mark.parametrize(
    "text", ["A tool call is a wish.", '{"name": "Ada"}', "functions.add is one", '{"a": {"arguments": 1}}']
)
def test_other_text_is_not_taken_for_a_call(text: str):
    assert read_message(completion(message(content=text))).notes == ()


@pytest.mark.parametrize("text", ["{" + " " * 90_000, "[ { " + "\n" * 90_000 + "}", "functions." * 9_000])
def test_no_text_is_searched_for_a_call_for_long(text: str):
    """Each blank tried with each other one would take minutes."""
    assert read_message(completion(message(content=text))).notes == ()


@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({"reasoning_content": "hm\ud800", "content": "a"}, "hm\ufffd"),
        ({"reasoning_content": "one", "content": "<think>two</think>a"}, "one"),
        (
            {"content": [{"type": "thinking", "thinking": [{"text": "hm"}]}, {"type": "text", "text": "a"}]},
            "hm",
        ),
        ({"reasoning": " ", "content": "a"}, None),
        ({"reasoning": "x" * (MAX_REASONING_CHARS + 9), "content": "a"}, "x" * MAX_REASONING_CHARS),
    ],
)
def test_reasoning_is_told_apart(fields: dict[str, Any], reasoning: str | None):
    reply = read_message(completion(message(**fields)))
    assert (reply.text, reply.reasoning) == ("a", reasoning)
    stream = Stream()
    stream.feed(chunk("stop", USAGE, **fields))
    streamed = stream.finish(done=True)
    assert (streamed.text, streamed.reasoning) == ("a", reasoning)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        [{"a": float("-inf")}],
        "x" * MAX_EXTRA_BYTES,
        "é" * (MAX_EXTRA_BYTES // 2),
        list(range(MAX_EXTRA_BYTES)),
        nested(33),
        nested(800),
        nested(5000),
    ],
)
def test_a_vendor_field_without_bounds_is_dropped(value: Any):
    reply = read_message(completion(message(content="a", odd=value, reasoning="hm")))
    assert (reply.extra, reply.text) == ({"reasoning": "hm"}, "a")
    assert reply.notes == (Quirk.VENDOR_DROPPED, Quirk.VENDOR_FIELDS)
    stream = Stream()
    stream.feed(chunk("stop", USAGE, odd=value, reasoning="hm"))
    assert stream.finish(done=True).extra == {"reasoning": "hm"}


def test_vendor_fields_are_bounded_together():
    fields = {f"f{number}": "x" * 1000 for number in range(100)}
    extra = read_message(completion(message(content="a", deep=nested(32), **fields))).extra
    assert extra["deep"] == nested(32)
    assert 60_000 < len(json.dumps(dict(extra))) < MAX_EXTRA_BYTES + 1000


@pytest.mark.parametrize("count", [MAX_CALLS + 1, 700_000])
def test_the_calls_of_an_answer_are_bounded(count: int):
    at_limit = read_message(completion(message(tool_calls=[call()] * MAX_CALLS), "tool_calls"))
    assert len(at_limit.calls) == MAX_CALLS
    with pytest.raises(ModelError, match=Unreadable.CALLS_MANY) as raised:
        read_message(completion(message(tool_calls=[call()] * count), "tool_calls"))
    assert raised.value.code == "provider_protocol"


def test_of_two_choices_the_first_is_used():
    body = completion(message(content="first"))
    body["choices"].append({"index": 1, "message": message(tool_calls=[call()])})
    reply = read_message(body)
    assert (reply.text, reply.calls, reply.notes) == ("first", (), (Quirk.CHOICES_EXTRA,))


def test_length_is_no_mismatch():
    reply = read_message(completion(message(tool_calls=[call()]), "length"))
    assert (reply.finish_reason, reply.notes) == ("length", ())


def test_refusals_are_kept_apart():
    assert read_message(completion(message(refusal="No."))).refusal == "No."
    parts = [{"type": "refusal", "refusal": "No."}]
    assert read_message(completion(message(content=parts))).refusal == "No."


def test_only_vendor_fields_are_kept():
    fields: dict[str, Any] = {
        "audio": {},
        "annotations": [],
        "reasoning": "r\ud800",
        "extra_content": {"a": ["\ud800"]},
        "x": None,
    }
    reply = read_message(completion(message(content="a", **fields)))
    assert reply.extra == {"reasoning": "r\ufffd", "extra_content": {"a": ["\ufffd"]}}


def test_a_bare_message_is_read_without_notes_about_its_completion():
    assert read_assistant({"role": "assistant", "content": "hi"}) == Reply(text="hi")
    assert read_assistant(message(tool_calls=[call()])).notes == ()


NO_ANSWERS: list[tuple[Any, Unreadable]] = [
    (None, Unreadable.NO_OBJECT),
    ([], Unreadable.NO_OBJECT),
    ("text", Unreadable.NO_OBJECT),
    ({}, Unreadable.NO_CHOICES),
    ({"choices": None}, Unreadable.NO_CHOICES),
    ({"choices": []}, Unreadable.NO_CHOICES),
    ({"choices": {}}, Unreadable.NO_CHOICES),
    ({"choices": [None]}, Unreadable.NO_CHOICE),
    ({"choices": [{}]}, Unreadable.NO_MESSAGE),
    (completion(None), Unreadable.NO_MESSAGE),
    (completion("text"), Unreadable.NO_MESSAGE),
    (completion(message(content=5)), Unreadable.CONTENT),
    (completion(message(content=[5])), Unreadable.CONTENT),
    (completion(message(content="a", refusal=5)), Unreadable.REFUSAL),
    (completion(message(tool_calls={})), Unreadable.CALLS),
    (completion(message(tool_calls="x")), Unreadable.CALLS),
    (completion(message(tool_calls=[None])), Unreadable.CALL),
    (completion(message(tool_calls=[call()] * (MAX_CALLS + 1))), Unreadable.CALLS_MANY),
    (completion(message(tool_calls=[call(function="add")])), Unreadable.FUNCTION),
    (completion(message(tool_calls=[call(function=function(name=5))])), Unreadable.NAME),
]


@pytest.mark.parametrize(("body", "what"), NO_ANSWERS)
def test_what_is_no_answer_is_a_protocol_error(body: Any, what: Unreadable):
    with pytest.raises(ModelError) as raised:
        read_message(body)
    assert raised.value.code == "provider_protocol"
    assert raised.value.message == f"The model's server sent {what}."
    assert not raised.value.retry


@pytest.mark.parametrize(
    ("error", "code", "retry"),
    [
        ({"message": "upstream SECRET", "type": "server_error", "code": "x"}, "provider_error", False),
        ("SECRET", "provider_error", False),
        ({"message": "SECRET", "code": 502}, "provider_error", True),
        ({"message": "SECRET", "code": 429}, "provider_rate_limited", True),
        ({"message": "SECRET", "code": "rate_limit_exceeded"}, "provider_rate_limited", True),
        ({"message": "SECRET", "code": "context_length_exceeded"}, "context_overflow", False),
    ],
)
def test_an_error_inside_a_200_does_not_show_its_words(error: Any, code: str, retry: bool):
    with pytest.raises(ModelError) as raised:
        read_message({"error": error})
    assert (raised.value.code, raised.value.retry) == (code, retry)
    assert "SECRET" not in raised.value.message


# --- streams ---


def chunk(finish_reason: str | None = None, usage: Any = None, **delta: Any) -> dict[str, Any]:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
    return {"choices": choices, "usage": usage}


def piece(arguments: Any = None, **fields: Any) -> dict[str, Any]:
    """One delta of one call; `name` goes into its function."""
    inner = {"arguments": arguments} | ({"name": fields.pop("name")} if "name" in fields else {})
    return {"function": inner, **fields}


def streamed(*entries: dict[str, Any]) -> Reply:
    stream = Stream()
    for entry in entries:
        assert stream.feed(chunk(tool_calls=[entry])) is None
    stream.feed(chunk("tool_calls", USAGE))
    return stream.finish(done=True)


A, B = WireCall("a", "add", '{"a": 1}'), WireCall("b", "mul", '{"b": 2}')


@pytest.mark.parametrize(
    ("entries", "calls", "note"),
    [
        pytest.param(
            [
                piece("", index=0, id="a", name="add"),
                piece('{"a"', index=0),
                piece(": 1}", index=0),
                piece("", index=1, id="b", name="mul"),
                piece('{"b": 2}', index=1),
            ],
            (A, B),
            None,
            id="as documented",
        ),
        pytest.param(
            [
                piece('{"a"', index=0, id="a", name="add"),
                piece(": ", index=0, id="a", name="add"),
                piece("1}", index=0, id="a", name="add"),
            ],
            (A,),
            None,
            id="id and name repeated in each",
        ),
        pytest.param(
            [piece('{"a"', id="a", name="add"), piece(": 1}"), piece('{"b": 2}', id="b", name="mul")],
            (A, B),
            Quirk.INDEX_MISSING,
            id="index missing",
        ),
        pytest.param(
            [piece('{"a"', id="a", name="add", index=None), piece(": 1}", id="a", index=None)],
            (A,),
            Quirk.INDEX_MISSING,
            id="index null",
        ),
        pytest.param(
            [piece('{"a": 1}', index=0, id="a", name="add"), piece('{"b": 2}', index=0, id="b", name="mul")],
            (A, B),
            Quirk.INDEX_REPEATED,
            id="index all zero",
        ),
        pytest.param(
            [
                piece('{"a"', index=0, id="a", name="add"),
                piece('{"b"', index=0, id="b", name="mul"),
                piece(": 1}", index=0, id="a"),
                piece(": 2}", index=0, id="b"),
            ],
            (A, B),
            Quirk.INDEX_REPEATED,
            id="index all zero, ids in turn",
        ),
        pytest.param(
            [piece('{"a": 1}', index=0, name="add"), piece('{"b": 2}', index=0, name="mul")],
            (WireCall(None, "add", '{"a": 1}'), WireCall(None, "mul", '{"b": 2}')),
            Quirk.ID_MISSING,
            id="index all zero without ids",
        ),
        pytest.param(
            [piece('{"a": 1}', index=0, name="add"), piece('{"b": 2}', index=0, name="add")],
            (WireCall(None, "add", '{"a": 1}'), WireCall(None, "add", '{"b": 2}')),
            Quirk.INDEX_REPEATED,
            id="one tool twice at one index without ids",
        ),
        pytest.param(
            [piece('{"a": 1}', index=1, id="a", name="add"), piece('{"b": 2}', index=2, id="b", name="mul")],
            (A, B),
            Quirk.INDEX_START,
            id="index starts at 1",
        ),
        pytest.param(
            [
                piece('{"b"', index=1, id="b", name="mul"),
                piece('{"a": ', index=0, id="a", name="add"),
                piece(": 2}", index=1),
                piece("1}", index=0),
            ],
            (A, B),
            Quirk.INDEX_ORDER,
            id="index out of order",
        ),
        pytest.param(
            [piece('{"a": 1}', index=0, id="x", name="add"), piece('{"b": 2}', index=1, id="x", name="mul")],
            (WireCall("x", "add", '{"a": 1}'), WireCall("x", "mul", '{"b": 2}')),
            None,
            id="one id at two indexes",
        ),
        pytest.param(
            [piece("", index=0, name="add"), piece('{"a": 1}', index=0, id="a")],
            (A,),
            None,
            id="id comes late",
        ),
        pytest.param(
            [piece({"a": 1}, index=0, id="a", name="add")],
            (WireCall("a", "add", {"a": 1}),),
            Quirk.ARGUMENTS_OBJECT,
            id="arguments object",
        ),
        pytest.param(
            [piece({"a": 1}, index=0, id="a", name="add"), piece(" ", index=0)],
            (WireCall("a", "add", '{"a": 1} '),),
            Quirk.ARGUMENTS_MIXED,
            id="arguments object, then text",
        ),
        pytest.param(
            [piece(None, index=0, id="a", name="add")],
            (WireCall("a", "add", None),),
            Quirk.ARGUMENTS_NULL,
            id="arguments null",
        ),
        pytest.param(
            [piece("", index=0, id="a", name="add")],
            (WireCall("a", "add", ""),),
            Quirk.ARGUMENTS_NO_OBJECT,
            id="arguments empty",
        ),
        pytest.param(
            [piece(None, index=0, id="a", name="ad"), piece('{"a": 1}', index=0, id="a", name="d")],
            (A,),
            Quirk.NAME_PIECES,
            id="name in pieces",
        ),
        pytest.param(
            [{"index": 0, "id": "a"}],
            (WireCall("a", "", None),),
            Quirk.FUNCTION_MISSING,
            id="function missing",
        ),
    ],
)
def test_streamed_calls(entries: list[dict[str, Any]], calls: tuple[WireCall, ...], note: Quirk | None):
    reply = streamed(*entries)
    assert reply.calls == calls
    assert note is None or note in reply.notes
    assert note is not None or reply.notes == ()


def test_streamed_text_is_handed_on_and_put_together():
    stream = Stream()
    deltas = [stream.feed(chunk(content=text)) for text in ("Hel", "", "lo ", "\ud83d", "\ude00")]
    stream.feed(chunk("stop"))
    assert stream.feed({"choices": [], "usage": USAGE}) is None
    reply = stream.finish(done=True)
    assert deltas == ["Hel", None, "lo ", "\ufffd", "\ufffd"]
    assert (reply.text, reply.usage) == ("Hello \U0001f600", Usage(5, 7))


def test_streamed_vendor_fields_grow():
    stream = Stream()
    stream.feed(chunk(reasoning_content="I th", reasoning_details=[1], mark={"a": 1}))
    stream.feed(chunk(reasoning_content="ink", reasoning_details=[2], mark={"a": 2}))
    stream.feed(chunk("stop", USAGE, content="Yes", refusal=None))
    reply = stream.finish(done=True)
    assert reply.extra == {"reasoning_content": "I think", "reasoning_details": [1, 2], "mark": {"a": 2}}
    assert (reply.text, reply.notes) == ("Yes", (Quirk.VENDOR_FIELDS,))


def test_another_choice_in_a_stream_is_left_out():
    stream = Stream()
    stream.feed(chunk(content="one"))
    assert stream.feed({"choices": [{"index": 1, "delta": {"content": "two"}}]}) is None
    stream.feed(chunk("stop", USAGE))
    reply = stream.finish(done=True)
    assert (reply.text, reply.notes) == ("one", (Quirk.CHOICES_EXTRA,))


def test_a_stream_without_done_is_whole_once_it_has_a_finish_reason():
    stream = Stream()
    stream.feed(chunk("stop", USAGE, content="all"))
    assert stream.finish(done=False).notes == (Quirk.DONE_MISSING,)


def test_a_stream_with_neither_is_cut_off():
    stream = Stream()
    stream.feed(chunk(content="Hel"))
    with pytest.raises(ModelError, match=Unreadable.CUT_OFF):
        stream.finish(done=False)


def test_a_whole_message_inside_a_stream_is_read():
    stream = Stream()
    stream.feed(completion(message(content="all")))
    assert (stream.finish(done=True).text, stream.finish(done=True).notes) == ("all", (Quirk.DELTA_MESSAGE,))


NO_CHUNKS: list[Any] = [
    None,
    [],
    {"choices": "x"},
    {"choices": [None]},
    {"choices": [{"delta": "x"}]},
    {"choices": [{"delta": {"content": 5}}]},
    {"choices": [{"delta": {"tool_calls": "x"}}]},
    {"choices": [{"delta": {"tool_calls": [None]}}]},
    {"error": {"message": "x"}},
    {"choices": [{"delta": {}}], "error": {"message": "x"}},
]


@pytest.mark.parametrize("bad", NO_CHUNKS)
def test_a_chunk_that_is_none_is_an_error(bad: Any):
    with pytest.raises(ModelError):
        Stream().feed(bad)


def test_a_stream_of_nothing_is_an_error():
    with pytest.raises(ModelError, match=Unreadable.NO_CHOICES):
        Stream().finish(done=True)


def test_the_calls_of_a_stream_are_bounded():
    stream = Stream()
    for number in range(MAX_CALLS):
        stream.feed(chunk(tool_calls=[piece("{}", index=number)]))
    with pytest.raises(ModelError, match=Unreadable.CALLS_MANY):
        stream.feed(chunk(tool_calls=[piece("{}", index=MAX_CALLS)]))


# --- server-sent events ---

STREAM = (
    ': hi\r\n\r\nid: 1\ndata: {"a":\ndata:1}\n\revent: error\r\ndata\r\n\r\ndata: é\r\rretry: 5\n\ndata: last'
).encode()
EVENTS = [(b"", b'{"a":\n1}'), (b"error", b""), (b"", "é".encode()), (b"", b"last")]


def test_events_split_at_every_byte():
    for cut in range(len(STREAM) + 1):
        reader = Events()
        assert reader.feed(STREAM[:cut]) + reader.feed(STREAM[cut:]) + reader.finish() == EVENTS


def test_events_byte_by_byte():
    reader = Events()
    found = [event for byte in STREAM for event in reader.feed(bytes([byte]))]
    assert found + reader.finish() == EVENTS


def test_json_text_with_nan_stays_the_servers_text():
    body = json.loads(
        '{"choices": [{"message": {"tool_calls": [{"id": "c", "function": {"arguments": [NaN]}}]}}]}'
    )
    assert read_message(body).calls[0].arguments == "[NaN]"


ELSEWHERE = {
    Quirk.DELTA_MESSAGE: "test_a_whole_message_inside_a_stream_is_read",
    Quirk.DONE_MISSING: "test_a_stream_without_done_is_whole_once_it_has_a_finish_reason",
    Quirk.CALL_AS_TEXT: "test_a_call_written_as_text_is_text",
}
NAMED_LATER = {Quirk.ID_TAKEN, Quirk.CALLS_UNASKED, Quirk.CALLS_CUT}
"""Notes of the step from a reply to an event, tested with the decisions."""


def test_every_quirk_has_its_row():
    tables = (test_a_message_is_read_tolerantly, test_a_call_is_read_tolerantly)
    tables += (test_a_completion_is_read_tolerantly, test_streamed_calls)
    marks: list[Any] = [mark for table in tables for mark in cast(Any, table).pytestmark]
    rows = [getattr(row, "values", row) for mark in marks for row in mark.args[1]]
    noted = {value for row in rows for value in row if isinstance(value, Quirk)}
    assert noted | ELSEWHERE.keys() | NAMED_LATER == set(Quirk)
    assert all(name in globals() for name in ELSEWHERE.values())
