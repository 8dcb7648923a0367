"""The gateway: the gates in their order, and the only place that executes a tool.

A gate looks at one call and at the state, changes nothing, and says pass, answer, ask or wait. What it
said is one event. A call that passed them all is claimed, run and recorded here and nowhere else.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING, Any, TypeVar

from agent import arguments as reading
from agent.limits import Deadline, Limits
from agent.policy import Policy
from agent.record import (
    BAD_ARGUMENT_CODES,
    NEVER_REPLAYED,
    Approval,
    ApprovalRequested,
    CallAnswered,
    CallDeferred,
    CallFinished,
    CallStarted,
    CallState,
    Conversation,
    Failure,
    RunState,
    ToolCall,
    ToolResult,
    Verdict,
)
from agent.saved import result_from_json, result_to_json
from agent.store import Execution, IntentKey
from tools.base import TOOL_CODES, BadArguments, FieldFault, JsonValue, Tool, ToolContext, ToolError

if TYPE_CHECKING:
    from agent.agent import Agent

T = TypeVar("T")

GATES = (
    "identity",
    "budget",
    "known",
    "parse",
    "validate",
    "repeat",
    "permission",
    "approval",
    "execute",
    "record",
)


# --- what a gate sees, and what it says ---------------------------------------------------------


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
    behind: str
    again: bool = False


Outcome = Pass | Answer | Ask | Wait
Gate = Callable[[ToolCall, View], Outcome]
PASS = Pass()
BUSY = Failure("tool_busy", "Too many tools are running now. Try again later.")


def refuse(call: ToolCall, code: str, message: str, **details: JsonValue) -> Answer:
    return Answer(failed(call.name, code, message, details=details or None))


def failed(tool: str, code: str, message: str, **more: Any) -> ToolResult:
    return ToolResult(False, tool, error=Failure(code, message, **more))


def read(call: ToolCall, tools: Mapping[str, Tool], limits: Limits) -> Reading:
    """Read a call's arguments as far as they can be read. Judges nothing; the gates do."""
    tool = tools.get(call.name)
    raw, note = call.arguments, None
    if raw is None or (isinstance(raw, str) and not raw.strip()):
        if tool and not tool.has_required and tool.effect != "write":
            raw, note = "{}", "empty arguments count as {}"
        else:
            raw = ""
    try:
        value = reading.parse(raw if isinstance(raw, str) else _as_text(raw), limits)
    except reading.BadJson as error:
        return Reading(tool, reading.digest(call.name, str(raw)), bad_json=str(error), note=note)
    text = reading.canonical(value)
    if tool is None:
        return Reading(None, reading.digest(call.name, text), text, value, note=note)
    try:
        value = tool.validate(value)
    except BadArguments as error:
        return Reading(tool, reading.digest(call.name, text), text, faults=error.faults, note=note)
    text = reading.canonical(value)
    return Reading(tool, reading.digest(call.name, text), text, value, note=note)


def _as_text(raw: dict[str, Any]) -> str:
    try:
        return json.dumps(raw)  # NaN stays NaN here: the strict reader refuses it
    except RecursionError:
        raise reading.BadJson("The arguments are nested too deep.") from None


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
            return _result_of(call, other)
    if any(other.reply == view.this.reply for other in same_id):
        message = f"The id {call.provider_id!r} stands for another call of this reply. Use one id a call."
        return refuse(call, "id_conflict", message)
    return Pass(f"the server gave the id {call.provider_id!r} again; it is a new call") if same_id else PASS


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
    off = view.state.switched_off
    if view.read.tool and call.name not in off and call.name not in view.policy.disabled:
        return PASS
    names: list[JsonValue] = [n for n in view.tools if n not in off and n not in view.policy.disabled]
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
    message = " ".join(fault.message for fault in view.read.faults)
    fields: list[JsonValue] = [{"field": f.field, "problem": f.kind} for f in view.read.faults]
    return _bad(call, view, "bad_arguments", message, {"fields": fields})


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
    if standing.code == "outcome_unknown" and (late := view.look_up(digest)):
        return Answer(late)
    return _result_of(call, standing)


def permission(call: ToolCall, view: View) -> Outcome:
    """May this owner do this, with these arguments? A refusal bars the tool for the run."""
    refusal = view.policy.refusal(_tool(view.read), view.read.arguments or {})
    if refusal is None and call.name in view.run.barred:
        refusal = "This tool was refused before in this run."
    return refuse(call, "permission_denied", refusal) if refusal else PASS


def approval(call: ToolCall, view: View) -> Outcome:
    """Must a person agree? To each write, and to the first call that leaves for a third party."""
    tool = _tool(view.read)
    known_hosts = (*view.policy.allowed_hosts, *view.state.allowed_hosts)
    host = tool.host if tool.host not in known_hosts else None
    if host in view.run.refused_hosts:
        return refuse(call, "denied_earlier", f"A person denied calls to {host} in this run.")
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
JUDGED_AGAIN = ("budget", "known", "permission")
JUDGED_ON_EDIT = ("parse", "validate", "repeat", "permission")


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdicts of the gates that a call reached, and what the last of them said."""

    verdicts: tuple[Verdict, ...]
    outcome: Outcome
    note: str | None = None


_PASSED = {name: Verdict(name, "pass") for name in GATES}


def judge(call: ToolCall, view: View, gates: tuple[str, ...] = tuple(JUDGED)) -> Judgement:
    """Put a call before the gates, in order, up to the first that does not let it pass."""
    verdicts: list[Verdict] = []
    notes = [view.read.note]
    for name in gates:
        outcome = JUDGED[name](call, view)
        if not isinstance(outcome, Pass):
            return Judgement((*verdicts, _verdict(name, outcome)), outcome, _joined(notes))
        verdicts.append(_PASSED[name])
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
            return _PASSED[gate]


def _joined(notes: list[str | None]) -> str | None:
    return "; ".join(filter(None, notes)) or None


def _is_earlier(other: CallState, this: CallState) -> bool:
    return (other.reply, other.position) < (this.reply, this.position)


def _result_of(call: ToolCall, other: CallState) -> Answer | Wait:
    """What another call with the same meaning was answered; behind it, while it has no answer."""
    if other.result is None:
        return Wait(other.id)
    if other.code in ("denied", "denied_earlier"):
        return denied_earlier(call)
    return Answer(other.result)


def denied_earlier(call: ToolCall) -> Answer:
    return refuse(call, "denied_earlier", "A person denied this in this run. It was not done.")


def _limit(call: ToolCall, code: str) -> Answer:
    message = f"This run has met its limit {code}; the call was not made."
    return replace(refuse(call, "limit_reached", message), strikes=code)


def _bad(call: ToolCall, view: View, code: str, message: str, details: dict[str, JsonValue]) -> Answer:
    struck = max(view.run.bad_counts(with_bad=view.this)) >= view.limits.max_bad_arguments
    answer = refuse(call, code, message, **details)
    return replace(answer, strikes="bad_arguments_limit" if struck else None)


# --- from a judgement to an event ---------------------------------------------------------------


def handle(agent: "Agent", run: RunState, this: CallState) -> None:
    """Judge one call and append what came of it; run it where no gate has anything against it."""
    read_ = read(this.call, agent.tools, agent.limits)
    judgement = judge(this.call, view_of(agent, run, this, read_))
    common = _common(agent, run, this, judgement, read_)
    match judgement.outcome:
        case Pass():
            carry_out(agent, run, this, read_, judgement)
        case Answer(result, strikes):
            agent.append(CallAnswered(**common, result=stamped(agent, result), strikes=strikes))
        case Wait(behind, again):
            agent.append(CallDeferred(**common, behind=behind, again=again))
        case Ask(risk, host):
            agent.append(ApprovalRequested(**common, approval=make_card(agent, this, read_, risk, host)))


def follow(agent: "Agent", run: RunState, this: CallState, leader: CallState) -> None:
    """Answer a call that waited behind another one with the result of that one."""
    outcome = _result_of(this.call, leader)
    if isinstance(outcome, Wait):
        raise ValueError(f"Call {leader.id} has no result to take.")
    judgement = Judgement((Verdict("repeat", "answer", outcome.result.code),), outcome)
    common = _common(agent, run, this, judgement, read(this.call, agent.tools, agent.limits))
    agent.append(CallAnswered(**common, result=stamped(agent, outcome.result)))


def make_card(agent: "Agent", this: CallState, read_: Reading, risk: str, host: str | None) -> Approval:
    """The card of a call: all that a person needs, and nothing in the model's words but the arguments."""
    tool = _tool(read_)
    sends = f"Send the arguments below to {host}, a third party." if host else ""
    return Approval(
        id=agent.new_id("ask"),
        call_id=this.id,
        tool=tool.name,
        arguments=reading.parse(read_.text or "", agent.limits),
        digest=read_.digest,
        preview=" ".join(filter(None, [tool.preview if tool.effect == "write" else "", sends])),
        risk=risk,
        expires_at=agent.now() + agent.limits.approval_s,
        host=host,
    )


def view_of(agent: "Agent", run: RunState, this: CallState, read_: Reading) -> View:
    return View(
        state=agent.state,
        run=run,
        this=this,
        read=read_,
        tools=agent.tools,
        limits=agent.limits,
        policy=agent.policy,
        now=agent.now(),
        look_up=lambda digest: _stored(agent, run, digest, agent.store.look_up),
        precondition=lambda: _precondition(agent, run, read_, None),
    )


def read_approved(agent: "Agent", this: CallState) -> Reading:
    """Read the stored form of an approved call: what the card showed, and nothing else."""
    return read(with_arguments(this.call, this.arguments), agent.tools, agent.limits)


def with_arguments(call: ToolCall, arguments: str | None) -> ToolCall:
    return replace(call, arguments=arguments)


def ask_again(agent: "Agent", run: RunState, this: CallState) -> None:
    """Draw a new card for a call of a loaded run, from what the model wrote; no decision is kept."""
    read_ = read(this.call, agent.tools, agent.limits)
    judgement = judge(
        this.call, view_of(agent, run, this, read_), ("known", "parse", "validate", "permission")
    )
    common = _common(agent, run, this, judgement, read_)
    if isinstance(judgement.outcome, Answer):
        agent.append(CallAnswered(**common, result=stamped(agent, judgement.outcome.result)))
    elif this.approval:
        card = make_card(agent, this, read_, this.approval.risk, this.approval.host)
        agent.append(ApprovalRequested(**common, approval=card))


def aftermath(agent: "Agent", run: RunState, this: CallState) -> ToolResult | None:
    """What the store knows of a call that was running when its process ended."""
    if this.phase != "running" or this.effect != "write":
        return None
    return _stored(agent, run, this.digest, agent.store.look_up)


def _common(
    agent: "Agent", run: RunState, this: CallState, judgement: Judgement, read_: Reading
) -> dict[str, Any]:
    return {
        "at": agent.now(),
        "run_id": run.id,
        "call_id": this.id,
        "verdicts": judgement.verdicts,
        "digest": read_.digest,
        "arguments": read_.text,
        "effect": read_.tool.effect if read_.tool else None,
        "note": judgement.note,
    }


def stamped(agent: "Agent", result: ToolResult) -> ToolResult:
    return result if result.retrieved_at else replace(result, retrieved_at=agent.timestamp())


def _tool(read_: Reading) -> Tool:
    if read_.tool is None or read_.arguments is None:
        raise ValueError("The gates before answer a call without tool or arguments.")
    return read_.tool


# --- gates 9 and 10: claim, run, record ---------------------------------------------------------


def carry_out(
    agent: "Agent", run: RunState, this: CallState, read_: Reading, judgement: Judgement | None = None
) -> None:
    """Claim, run and record one call. Without a `judgement` it was approved, and is judged again."""
    slot = agent.threads.take()
    try:
        if not _start(agent, run, this, read_, judgement, slot) or slot is None:
            return
        result = _run(agent, run, this, read_, slot)
    finally:
        if slot:
            slot.leave()
    bad = result.code in BAD_ARGUMENT_CODES
    struck = bad and max(run.bad_counts(with_bad=this)) >= agent.limits.max_bad_arguments
    agent.append(
        CallFinished(
            at=agent.now(),
            run_id=run.id,
            call_id=this.id,
            verdicts=(
                Verdict("execute", "answer" if result.error else "pass", result.code),
                _PASSED["record"],
            ),
            result=result,
            executed_digest=reading.digest(result.tool_name, reading.canonical(read_.arguments)),
            strikes="bad_arguments_limit" if struck else None,
        )
    )


def _start(
    agent: "Agent",
    run: RunState,
    this: CallState,
    read_: Reading,
    judgement: Judgement | None,
    slot: "Slot | None",
) -> bool:
    """Append that the call runs, with the claim of a write; or the answer that stands in its way."""
    fault = None
    if slot is None:
        fault = BUSY
    elif judgement is None:
        fault = _changed(this, read_) or _precondition(agent, run, read_, slot)
    with agent.lock:
        again = judgement or judge(this.call, view_of(agent, run, this, read_), JUDGED_AGAIN)
        answer = again.outcome if isinstance(again.outcome, Answer) else None
        if answer is None and fault:
            answer = Answer(ToolResult(False, this.call.name, error=fault))
            again = replace(again, verdicts=(*again.verdicts, Verdict("execute", "answer", fault.code)))
        if answer is None and _tool(read_).effect == "write":
            agent.require(run)
            standing = _stored(agent, run, read_.digest, agent.store.claim)
            answer = Answer(standing) if standing else None
        common = _common(agent, run, this, again, read_)
        if answer:
            agent.append(CallAnswered(**common, result=stamped(agent, answer.result), strikes=answer.strikes))
        else:
            agent.append(CallStarted(**common))
    return answer is None


def _changed(this: CallState, read_: Reading) -> Failure | None:
    if read_.tool and read_.digest != this.digest:
        return Failure("conflict", "What would run is not what was approved. It was not done.")
    return None


def _key(agent: "Agent", run: RunState, digest: str) -> IntentKey:
    return IntentKey(agent.owner_id, run.id, digest, 1 + run.conflicts[digest])


def _stored(
    agent: "Agent", run: RunState, digest: str, ask: Callable[[IntentKey], Execution | None]
) -> ToolResult | None:
    """What the store says of an intent; a claim without a result is an unknown outcome."""
    standing = ask(_key(agent, run, digest))
    if standing is None:
        return None
    return result_from_json(standing.result) if standing.result else unknown_outcome("this call")


def unknown_outcome(tool: str) -> ToolResult:
    message = "Nobody knows whether this was done. Do not ask for it again; tell the person to look."
    return failed(tool, "outcome_unknown", message)


def _run(agent: "Agent", run: RunState, this: CallState, read_: Reading, slot: "Slot") -> ToolResult:
    """Run a claimed call on a thread of its own, with a deadline; the thread records what it did."""
    tool = _tool(read_)
    key = _key(agent, run, read_.digest) if tool.effect == "write" else None

    def work() -> ToolResult:
        result = _call(agent, run, this, read_)
        if key:
            agent.store.record(key, result_to_json(result))
        return result

    try:
        return slot.run(work, _deadline(agent, run))
    except ToolTimeout:
        if tool.effect == "write":
            return stamped(agent, unknown_outcome(tool.name))
        message = f"The tool did not answer within {agent.limits.tool_s:g} s."
        return stamped(agent, failed(tool.name, "tool_timeout", message))


def _deadline(agent: "Agent", run: RunState) -> Deadline:
    now = agent.now()
    left = agent.limits.run_s - run.elapsed_s(now)
    return Deadline(agent.clock, now + min(agent.limits.tool_s, left))


def _call(agent: "Agent", run: RunState, this: CallState, read_: Reading) -> ToolResult:
    """Call the tool's function: data or a failure, never an exception."""
    tool = _tool(read_)
    started = agent.now()
    data, error, truncated = None, None, False
    try:
        value = tool.run(read_.arguments or {}, _context(agent, run, read_))
        data, truncated = _kept(value, agent.limits.max_result_chars)
    except BaseException as problem:  # noqa: BLE001
        # The one place where a stranger's code runs: whatever it raises, SystemExit included, is the
        # failure of this call alone, and its text may hold what nobody should read.
        error = _failure(problem)
        if error.code == "tool_error":
            agent.audit_line(run, tool_name=tool.name, call_id=this.id, error_code="tool_error")
    edited = this.digest != this.asked_digest
    return ToolResult(
        ok=error is None,
        tool_name=tool.name,
        result=data,
        error=error,
        elapsed_ms=round((agent.now() - started) * 1000),
        trust=tool.trust,
        source=tool.source,
        retrieved_at=agent.timestamp(),
        truncated=truncated,
        edited=(this.asked_arguments or "", this.arguments or "") if edited else None,
    )


def _context(agent: "Agent", run: RunState, read_: Reading) -> ToolContext:
    return ToolContext(
        clock=agent.clock,
        notes=agent.store.notes(agent.owner_id),
        idempotency_key=str(_key(agent, run, read_.digest)),
        knowledge=agent.knowledge,
    )


def _failure(problem: BaseException) -> Failure:
    if isinstance(problem, BadArguments):
        fields: list[JsonValue] = [{"field": f.field, "problem": f.kind} for f in problem.faults]
        message = " ".join(fault.message for fault in problem.faults)
        return Failure("bad_arguments", message, details={"fields": fields})
    if isinstance(problem, ToolError) and problem.code in TOOL_CODES:
        return Failure(problem.code, problem.message, details=problem.details or None)
    return Failure("tool_error", "The tool failed. Nothing is known about why.")


def _kept(value: JsonValue, max_chars: int) -> tuple[JsonValue, bool]:
    """A copy of a tool's data that nobody can change later, cut where it is too long."""
    text = reading.canonical(value, sort_keys=False)
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if len(text) > max_chars:
        return text[:max_chars], True
    return json.loads(text, parse_float=Decimal), False


def _precondition(agent: "Agent", run: RunState, read_: Reading, slot: "Slot | None") -> Failure | None:
    """Ask the tool itself whether the call can still be made; it runs under the same deadline."""
    check = read_.tool.precondition if read_.tool else None
    if check is None:
        return None
    held = slot or agent.threads.take()
    if held is None:
        return BUSY

    def work() -> Failure | None:
        try:
            check(read_.arguments or {}, _context(agent, run, read_))
        except BaseException as problem:  # noqa: BLE001  (a stranger's code, as above)
            return _failure(problem)
        return None

    try:
        return held.run(work, _deadline(agent, run))
    except ToolTimeout:
        return Failure("tool_timeout", "The tool did not say in time whether the call can be made.")
    finally:
        if slot is None:
            held.leave()


class ToolTimeout(Exception):
    """A tool did not come back before its deadline. Its thread goes on, and is counted."""


class ToolThreads:
    """A bounded number of threads for tools. A thread that was given up counts until it ends."""

    def __init__(self, most: int = 32) -> None:
        self._lock = Lock()
        self._free = most

    def take(self) -> "Slot | None":
        """A place for one thread, None where all are taken."""
        with self._lock:
            if self._free == 0:
                return None
            self._free -= 1
            return Slot(self)

    def give_back(self) -> None:
        with self._lock:
            self._free += 1


class Slot:
    """A place for one thread at a time, held until `leave`, and beyond it by a thread that still runs."""

    def __init__(self, threads: ToolThreads) -> None:
        self._threads = threads
        self._changed = Condition()
        self._busy = False
        self._left = False

    def run(self, work: Callable[[], T], deadline: Deadline) -> T:
        """Run `work` on a daemon thread and return what it returns, or raise `ToolTimeout`."""
        outcome: list[T] = []
        failure: list[BaseException] = []

        def body() -> None:
            try:
                outcome.append(work())
            except BaseException as error:  # noqa: BLE001  (carried over to the thread that waits)
                failure.append(error)
            with self._changed:
                self._busy = False
                self._changed.notify()
                if self._left:
                    self._threads.give_back()

        self._busy = True
        Thread(target=body, name="glassloop-tool", daemon=True).start()
        with self._changed:
            while self._busy and (left := deadline.left_s()) > 0:
                deadline.clock.wait(self._changed, left)
            if self._busy:
                raise ToolTimeout
        if failure:
            raise failure[0]
        return outcome[0]

    def leave(self) -> None:
        with self._changed:
            self._left = True
            if not self._busy:
                self._threads.give_back()
