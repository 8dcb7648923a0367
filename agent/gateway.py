"""The gateway: puts calls before the gates, and is the only place that executes a tool.

Each judging becomes one event. A call that passed all gates is claimed, run and recorded here and
nowhere else.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agent import arguments as reading
from agent.gates import (
    BUSY,
    JUDGED_AGAIN,
    PASSED,
    Answer,
    Ask,
    Judgement,
    Pass,
    Reading,
    View,
    Wait,
    failed,
    judge,
    read,
    result_of,
    told,
    tool_of,
)
from agent.limits import Deadline
from agent.record import (
    Approval,
    ApprovalRequested,
    CallAnswered,
    CallDeferred,
    CallFinished,
    CallStarted,
    Failure,
    ToolResult,
    Verdict,
)
from agent.saved import result_from_json, result_to_json
from agent.state import CallState, RunState
from agent.store import Execution, IntentKey
from agent.threads import Slot, ToolTimeout
from tools.base import TOOL_CODES, BadArguments, JsonValue, ToolContext, ToolError

MAX_DETAILS_CHARS = 2_000
MAX_SENTENCE_CHARS = 500
RESERVED = frozenset({"code", "message", "reason"})

if TYPE_CHECKING:
    from agent.agent import Agent


def handle(agent: "Agent", run: RunState, this: CallState) -> None:
    """Judge one call and append what came of it; run it where no gate has anything against it."""
    read_ = read_asked(agent, this)
    judgement = judge(this.call, view_of(agent, run, this, read_))
    common = _common(agent, run, this, judgement, read_)
    match judgement.outcome:
        case Pass():
            carry_out(agent, run, this, read_, judgement)
        case Answer(result, strikes):
            agent.append(CallAnswered(**common, result=stamped(agent, result), strikes=strikes))
        case Wait(leader, again):
            agent.append(CallDeferred(**common, leader=leader, again=again))
        case Ask(risk, host):
            agent.append(ApprovalRequested(**common, approval=make_card(agent, this, read_, risk, host)))


def follow(agent: "Agent", run: RunState, this: CallState, leader: CallState) -> None:
    """Answer a call that waited behind another one with the result of that one."""
    outcome = result_of(this.call, leader)
    if isinstance(outcome, Wait):
        raise ValueError(f"Call {leader.id} has no result to take.")
    gate = this.deferred.verdicts[-1].gate if this.deferred else "repeat"
    judgement = Judgement((Verdict(gate, "answer", outcome.result.code),), outcome)
    common = _common(agent, run, this, judgement, read_asked(agent, this))
    agent.append(CallAnswered(**common, result=stamped(agent, outcome.result)))


def make_card(agent: "Agent", this: CallState, read_: Reading, risk: str, host: str | None) -> Approval:
    """The card of a call: all that a person needs, and nothing in the model's words but the arguments."""
    tool = tool_of(read_)
    sends = f"Send the arguments below to {host}, a third party." if host else ""
    return Approval(
        id=agent.new_id("ask"),
        call_id=this.id,
        tool=tool.name,
        canonical=read_.text or "",
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
        look_up=lambda digest: _stored(agent, run, this.call.name, digest, agent.store.look_up),
        precondition=lambda: _precondition(agent, run, read_, None),
    )


def read_asked(agent: "Agent", this: CallState) -> Reading:
    """Read a call as the model wrote it."""
    return read(this.call.name, this.call.arguments or "", agent.tools, agent.limits)


def run_approved(agent: "Agent", run: RunState, this: CallState) -> None:
    """Run the stored form of an approved call: what the card showed, and nothing else."""
    read_ = read(this.call.name, this.arguments or "", agent.tools, agent.limits)
    carry_out(agent, run, this, read_, None)


def ask_again(agent: "Agent", run: RunState, this: CallState, at: float) -> None:
    """Draw a new card for a call of a loaded run, from what the model wrote; no decision is kept.

    The event is stamped `at`, the end of the record: the time away is not the run's.
    """
    read_ = read_asked(agent, this)
    judgement = judge(
        this.call, view_of(agent, run, this, read_), ("known", "parse", "validate", "permission")
    )
    common: dict[str, Any] = {**_common(agent, run, this, judgement, read_), "at": at}
    if isinstance(judgement.outcome, Answer):
        agent.append(CallAnswered(**common, result=stamped(agent, judgement.outcome.result)))
    elif this.approval:
        card = make_card(agent, this, read_, this.approval.risk, this.approval.host)
        agent.append(ApprovalRequested(**common, approval=card))


def aftermath(agent: "Agent", run: RunState, this: CallState) -> ToolResult | None:
    """What the store knows of a call that was running when its process ended."""
    if this.phase != "running" or this.effect != "write":
        return None
    return _stored(agent, run, this.call.name, this.digest, agent.store.look_up)


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


# --- gates 9 and 10: claim, run, record ---------------------------------------------------------


def carry_out(
    agent: "Agent", run: RunState, this: CallState, read_: Reading, judgement: Judgement | None
) -> None:
    """Claim, run and record one call. Without a `judgement` it was approved, and is judged again."""
    slot = agent.threads.take()
    try:
        if not _start(agent, run, this, read_, judgement, slot) or slot is None:
            return
        result, executed = _run(agent, run, this, read_, slot)
    finally:
        if slot:
            slot.leave()
    bad = result.code == "bad_arguments"
    struck = bad and run.bad_in_a_row(with_bad=this) >= agent.limits.max_bad_arguments
    agent.append(
        CallFinished(
            at=agent.now(),
            run_id=run.id,
            call_id=this.id,
            verdicts=(
                Verdict("execute", "answer" if result.error else "pass", result.code),
                PASSED["record"],
            ),
            result=result,
            executed_digest=executed,
            strikes="bad_arguments_limit" if struck else None,
        )
    )


def _start(
    agent: "Agent",
    run: RunState,
    this: CallState,
    read_: Reading,
    judgement: Judgement | None,
    slot: Slot | None,
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
        if answer is None and tool_of(read_).effect == "write":
            agent.require(run)
            # The form that was asked for is claimed too: elsewhere it may be approved unedited.
            claims = (
                _stored(agent, run, this.call.name, digest, agent.store.claim)
                for digest in dict.fromkeys((this.asked_digest, read_.digest))
            )
            standing = next(filter(None, claims), None)
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
    agent: "Agent", run: RunState, tool: str, digest: str, ask: Callable[[IntentKey], Execution | None]
) -> ToolResult | None:
    """What the store says of an intent; a claim without a result is an unknown outcome."""
    standing = ask(_key(agent, run, digest))
    if standing is None:
        return None
    return result_from_json(standing.result) if standing.result else unknown_outcome(tool)


def unknown_outcome(tool: str) -> ToolResult:
    message = "Nobody knows whether this was done. Do not ask for it again; tell the person to look."
    return failed(tool, "outcome_unknown", message)


def _run(
    agent: "Agent", run: RunState, this: CallState, read_: Reading, slot: Slot
) -> tuple[ToolResult, str]:
    """Run a claimed call on a thread of its own, with a deadline; the thread records what it did.

    Returns the result, and the digest of the arguments that the tool was handed, taken after it ran.
    """
    tool = tool_of(read_)
    digests = dict.fromkeys((this.asked_digest, read_.digest)) if tool.effect == "write" else ()
    keys = [_key(agent, run, digest) for digest in digests]
    handed = deepcopy(read_.arguments or {})

    def work() -> tuple[ToolResult, str]:
        result = _call(agent, run, this, read_, handed)
        for key in keys:
            agent.store.record(key, result_to_json(result))
        return result, reading.digest(tool.name, reading.json_text(handed))

    try:
        return slot.run(work, _deadline(agent, run))
    except ToolTimeout:
        if tool.effect == "write":
            return stamped(agent, unknown_outcome(tool.name)), read_.digest
        message = f"The tool did not answer within {agent.limits.tool_s:g} s."
        return stamped(agent, failed(tool.name, "tool_timeout", message)), read_.digest


def _deadline(agent: "Agent", run: RunState) -> Deadline:
    now = agent.now()
    left = agent.limits.run_s - run.elapsed_s(now)
    return Deadline(agent.clock, now + min(agent.limits.tool_s, left))


def _call(
    agent: "Agent", run: RunState, this: CallState, read_: Reading, handed: dict[str, JsonValue]
) -> ToolResult:
    """Call the tool's function: data or a failure, never an exception."""
    tool = tool_of(read_)
    started = agent.now()
    data, error, truncated = None, None, False
    try:
        value = tool.run(handed, _context(agent, run, read_))
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
        data=data,
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
        message, details = told(problem.faults)
        return Failure("bad_arguments", message, details=reading.json_text(details))
    if isinstance(problem, ToolError) and str(problem.code) in TOOL_CODES:
        sentence = reading.sendable(str(problem.message))[:MAX_SENTENCE_CHARS]
        return Failure(str(problem.code), sentence, details=_details(problem))
    return Failure("tool_error", "The tool failed. Nothing is known about why.")


def _kept(value: JsonValue, max_chars: int) -> tuple[str, bool]:
    """A tool's data as JSON text, cut to a text of its beginning where it is too long."""
    text = reading.sendable(reading.json_text(value, sort_keys=False))
    return (reading.json_text(text[:max_chars]), True) if len(text) > max_chars else (text, False)


def _details(problem: ToolError) -> str | None:
    """What a tool says beside its sentence, as the text of an object; too much of it is left out."""
    try:
        facts = {name: value for name, value in problem.details.items() if name not in RESERVED}
        text, cut = _kept(facts, MAX_DETAILS_CHARS)
        if cut:
            # The present state of a conflict is what the model plans with: better a part than nothing.
            each = MAX_DETAILS_CHARS // (len(facts) + 1)
            parts: dict[str, JsonValue] = {name[:80]: _part(value, each) for name, value in facts.items()}
            text, cut = _kept({**parts, "truncated": True}, 2 * MAX_DETAILS_CHARS)
    except (AttributeError, TypeError, ValueError, RecursionError):
        return None
    return None if cut or not facts else text


def _part(value: JsonValue, max_chars: int) -> JsonValue:
    """A value that is short enough, or the beginning of its text."""
    text = value if isinstance(value, str) else reading.json_text(value)
    return value if len(text) <= max_chars else text[:max_chars]


def _precondition(agent: "Agent", run: RunState, read_: Reading, slot: Slot | None) -> Failure | None:
    """Ask the tool itself whether the call can still be made; it runs under the same deadline."""
    check = read_.tool.precondition if read_.tool else None
    if check is None:
        return None
    held = slot or agent.threads.take()
    if held is None:
        return BUSY

    def work() -> Failure | None:
        try:
            # A copy: what a check does to its arguments is not what was approved.
            check(deepcopy(read_.arguments or {}), _context(agent, run, read_))
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
