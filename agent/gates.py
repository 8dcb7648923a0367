"""The gates, in their order, one function each: what a program asks of a call before anything runs.

A gate looks at one call and at the state, changes nothing, and says pass, answer, ask or wait. The two
gates after these, execute and record, are the gateway's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent import arguments as reading
from agent.limits import Limits
from agent.policy import Policy
from agent.record import Failure, ToolCall, ToolResult, Verdict
from agent.state import NEVER_REPLAYED, CallState, Conversation, RunState
from tools.base import BadArguments, FieldFault, JsonValue, Tool


@dataclass(frozen=True, slots=True)
class Reading:
    """A call's arguments, read before any gate: what they mean, or what is wrong with them."""

    tool: Tool | None
    digest: str
    text: str | None = None
    arguments: dict[str, JsonValue] | None = None
    bad_json: str | None = None
    faults: tuple[FieldFault, ...] = ()
    note: str | None = None


@dataclass(frozen=True, slots=True)
class View:
    """All that a gate may look at."""

    state: Conversation
    run: RunState
    this: CallState
    read: Reading
    tools: Mapping[str, Tool]
    limits: Limits
    policy: Policy
    now: float
    look_up: Callable[[str], ToolResult | None]
    precondition: Callable[[], Failure | None]


@dataclass(frozen=True, slots=True)
class Pass:
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    result: ToolResult
    strikes: str | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    risk: str
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    leader: str
    again: bool = False


Outcome = Pass | Answer | Ask | Wait
Gate = Callable[[ToolCall, View], Outcome]
PASS = Pass()
BUSY = Failure("tool_busy", "Too many tools are running now. Try again later.")


def refuse(call: ToolCall, code: str, message: str, **details: JsonValue) -> Answer:
    text = reading.json_text(details) if details else None
    return Answer(failed(call.name, code, message, details=text))


def failed(tool: str, code: str, message: str, **more: Any) -> ToolResult:
    return ToolResult(False, tool, error=Failure(code, message, **more))


def read(name: str, raw: str, tools: Mapping[str, Tool], limits: Limits) -> Reading:
    """Read a call's arguments as far as they can be read. Judges nothing; the gates do."""
    tool, note = tools.get(name), None
    if not raw.strip() and tool and not tool.has_required and tool.effect != "write":
        raw, note = "{}", "empty arguments count as {}"
    try:
        value = reading.parse(raw, limits)
    except reading.BadJson as error:
        return Reading(tool, reading.digest(name, raw), bad_json=str(error), note=note)
    text = reading.json_text(value)
    if tool is None:
        return Reading(None, reading.digest(name, text), text, value, note=note)
    try:
        value = tool.validate(value)
    except BadArguments as error:
        return Reading(tool, reading.digest(name, text), text, faults=error.faults, note=note)
    text = reading.json_text(value)
    return Reading(tool, reading.digest(name, text), text, value, note=note)


def tool_of(read_: Reading) -> Tool:
    if read_.tool is None or read_.arguments is None:
        raise ValueError("The gates before answer a call without tool or arguments.")
    return read_.tool


# --- gates 1 to 8 -------------------------------------------------------------------------------


def identity(call: ToolCall, view: View) -> Outcome:
    """Has this very call been made before? The provider's id and the content say so together."""
    same_id = [
        other
        for other in view.run.calls.values()
        if call.provider_id and other.call.provider_id == call.provider_id and _is_earlier(other, view.this)
    ]
    for other in same_id:
        in_this_reply = other.reply == view.this.reply
        replays = in_this_reply or (other.effect in ("none", "write") and other.code not in NEVER_REPLAYED)
        if other.asked_digest == view.read.digest and replays:
            return result_of(call, other)
    if any(other.reply == view.this.reply for other in same_id):
        message = f"The id {call.provider_id!r} stands for another call of this reply. Use one id a call."
        return refuse(call, "id_conflict", message)
    return Pass(f"the server gave the id {call.provider_id!r} again; it is a new call") if same_id else PASS


def switched_on(tools: Mapping[str, Tool], state: Conversation, policy: Policy) -> list[Tool]:
    """The tools that are on, for this owner's session and in this deployment."""
    off = state.switched_off.union(policy.disabled)
    return [tool for name, tool in tools.items() if name not in off]


def budget(call: ToolCall, view: View) -> Outcome:
    """Is anything left to spend? A limit that a later call met does not stop the calls ahead of it."""
    run, limits = view.run, view.limits
    if run.limit and view.this.position > run.limit_position:
        return _limit(call, run.limit)
    if not view.this.charged and run.charged >= limits.max_tool_calls:
        return _limit(call, "max_tool_calls")
    if run.usage.total_tokens > limits.max_tokens:
        return _limit(call, "token_limit")
    return PASS if run.elapsed_s(view.now) < limits.run_s else _limit(call, "run_timeout")


def known(call: ToolCall, view: View) -> Outcome:
    """Is there such a tool, by its exact name, switched on for this owner and this deployment?"""
    on = switched_on(view.tools, view.state, view.policy)
    if any(tool.name == call.name for tool in on):
        return PASS
    names: list[JsonValue] = [tool.name for tool in on]
    return refuse(
        call, "tool_not_allowed", "There is no such tool here. Use one of the tools named.", tools=names
    )


def parse(call: ToolCall, view: View) -> Outcome:
    """Are the arguments one strict JSON object?"""
    if view.read.bad_json is None:
        return PASS
    return _bad(call, view, "bad_json", view.read.bad_json, {})


def validate(call: ToolCall, view: View) -> Outcome:
    """Do the arguments fit the tool's schema, strictly?"""
    if not view.read.faults:
        return PASS
    message, details = told(view.read.faults)
    return _bad(call, view, "bad_arguments", message, details)


def told(faults: Sequence[FieldFault]) -> tuple[str, dict[str, JsonValue]]:
    """Faults as a message for the model, and as data."""
    fields: list[JsonValue] = [{"field": fault.field, "problem": fault.kind} for fault in faults]
    return " ".join(fault.message for fault in faults), {"fields": fields}


def repeat(call: ToolCall, view: View) -> Outcome:
    """Was the same asked before? A read may be repeated a little; a write has one effect a run."""
    run, digest = view.run, view.read.digest
    if view.read.tool is None or view.read.tool.effect != "write":
        if run.identical[digest] < view.limits.max_identical_calls:
            return PASS
        answer = refuse(call, "repeat_limit", "The same call was made too often in this run.")
        return replace(answer, strikes="repeated_call")
    standing = run.intents.get(digest)
    if standing is None or standing is view.this:
        return PASS
    if standing.code == "outcome_unknown" and (late := view.look_up(standing.digest)):
        return Answer(late)
    return result_of(call, standing)


def permission(call: ToolCall, view: View) -> Outcome:
    """May this owner do this, with these arguments? A refusal bars the tool for the run."""
    refusal = view.policy.refusal(tool_of(view.read), view.read.arguments or {})
    if refusal is None and call.name in view.run.barred:
        refusal = "This tool was refused before in this run."
    return refuse(call, "permission_denied", refusal) if refusal else PASS


def approval(call: ToolCall, view: View) -> Outcome:
    """Must a person agree? To each write, and to the first call that leaves for a third party."""
    tool = tool_of(view.read)
    if tool.host in view.run.refused_hosts:
        return refuse(call, "denied_earlier", f"A person denied calls to {tool.host} in this run.")
    known_hosts = (*view.policy.allowed_hosts, *view.state.allowed_hosts)
    host = tool.host if tool.host not in known_hosts else None
    if tool.effect == "write":
        fault = view.precondition()
        return Answer(ToolResult(False, tool.name, error=fault)) if fault else Ask("write", host)
    if host is None:
        return PASS
    asked = next((c for c in view.run.in_phase("asked") if c.approval and c.approval.host == host), None)
    return Wait(asked.id, again=True) if asked else Ask("third_party", host)


JUDGED: Mapping[str, Gate] = {
    "identity": identity,
    "budget": budget,
    "known": known,
    "parse": parse,
    "validate": validate,
    "repeat": repeat,
    "permission": permission,
    "approval": approval,
}
GATES = (*JUDGED, "execute", "record")
JUDGED_AGAIN = ("budget", "known", "permission")
JUDGED_ON_EDIT = ("parse", "validate", "repeat", "permission")


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdicts of the gates that a call reached, and what the last of them said."""

    verdicts: tuple[Verdict, ...]
    outcome: Outcome
    note: str | None = None


PASSED = {name: Verdict(name, "pass") for name in GATES}


def judge(call: ToolCall, view: View, gates: tuple[str, ...] = tuple(JUDGED)) -> Judgement:
    """Put a call before the gates, in order, up to the first that does not let it pass."""
    verdicts: list[Verdict] = []
    notes = [view.read.note]
    for name in gates:
        outcome = JUDGED[name](call, view)
        if not isinstance(outcome, Pass):
            return Judgement((*verdicts, _verdict(name, outcome)), outcome, _joined(notes))
        verdicts.append(PASSED[name])
        notes.append(outcome.note)
    return Judgement(tuple(verdicts), PASS, _joined(notes))


def _verdict(gate: str, outcome: Outcome) -> Verdict:
    match outcome:
        case Answer(result):
            return Verdict(gate, "answer", result.code)
        case Ask(risk):
            return Verdict(gate, "ask", risk)
        case Wait():
            return Verdict(gate, "wait")
        case Pass():
            return PASSED[gate]


def _joined(notes: list[str | None]) -> str | None:
    return "; ".join(filter(None, notes)) or None


def _is_earlier(other: CallState, this: CallState) -> bool:
    return (other.reply, other.position) < (this.reply, this.position)


def result_of(call: ToolCall, other: CallState) -> Answer | Wait:
    """What another call with the same meaning was answered; behind it, while it has no answer."""
    if other.result is None:
        return Wait(other.id)
    if other.code in ("denied", "denied_earlier"):
        return refuse(call, "denied_earlier", "A person denied this in this run. It was not done.")
    return Answer(other.result)


def _limit(call: ToolCall, code: str) -> Answer:
    message = f"This run has met its limit {code}; the call was not made."
    return replace(refuse(call, "limit_reached", message), strikes=code)


def _bad(call: ToolCall, view: View, code: str, message: str, details: dict[str, JsonValue]) -> Answer:
    struck = view.run.bad_in_a_row(with_bad=view.this) >= view.limits.max_bad_arguments
    answer = refuse(call, code, message, **details)
    return replace(answer, strikes="bad_arguments_limit" if struck else None)
