"""The loop: look at the folded state, do one thing, append what happened.

This file is the lesson. A run is one user message to its end. `advance` does its next step and returns
True; it returns False where the run has ended or waits for a person. It keeps nothing between two calls:
whatever it must know stands in the record, so a run can stop at any line here and be taken up again.

A call is open until it is judged. Then it is answered, or asked (a person has its card), approved,
deferred (it waits for another call), or running; in the end it is answered, always.

The model only asks. Each call that it asks for goes to the gateway, which judges it, and each judged
call has an answer before the next request goes out. That rule, one answer for each id, is what strict
servers check and what naive loops break when something is denied, stopped, or fails.
"""

from typing import TYPE_CHECKING

from agent import gates, gateway, replies
from agent.errors import ModelError
from agent.limits import Deadline
from agent.model import OnDelta
from agent.record import RequestSent, RunEnded, State, ToolResult
from agent.state import CallState, RunState, is_final
from agent.transcript import check_pairing, window, wire_messages

if TYPE_CHECKING:
    from agent.agent import Agent


def advance(agent: "Agent", run: RunState, on_delta: OnDelta | None) -> bool:
    """Do the next thing of a run; False where nothing can be done without a person, or at all."""
    if run.ended:
        return False
    if run.elapsed_s(agent.now()) >= agent.limits.run_s:
        # Time is out for everything at once: there is no last request, because there is no time for it.
        end(agent, run, State.FAILED, "run_timeout", call_code="limit_reached")
    elif call := next(run.in_phase("open"), None):
        # In order, and each that needs no person runs before the next is judged.
        gateway.handle(agent, run, call)
    elif run.pending:
        return False
    elif call := next(run.in_phase("approved", "deferred"), None):
        go_on(agent, run, call)
    elif is_final(run):
        finish(agent, run)
    elif run.failed and run.failed.retry_in_s is None:
        # Of a last request nobody needs to know why it failed: the run ends as the limit said.
        end(agent, run, State.FAILED, run.limit or run.failed.code)
    else:
        ask_model(agent, run, on_delta)
    return True


def go_on(agent: "Agent", run: RunState, call: CallState) -> None:
    """Take up a call that waited: for a person, or for another call with the same meaning."""
    if call.phase == "approved":
        gateway.run_approved(agent, run, call)
    elif call.deferred and call.deferred.again:
        gateway.handle(agent, run, call)
    elif call.deferred:
        gateway.follow(agent, run, call, run.calls[call.deferred.leader])


def ask_model(agent: "Agent", run: RunState, on_delta: OnDelta | None) -> None:
    """Send the transcript and append the reply, or why there is none."""
    limits = agent.limits
    if run.failed and run.failed.retry_in_s:
        agent.pause(run, run.failed.retry_in_s)
    # One request is kept back: a run that met a limit still gets to explain itself, without tools.
    last_for = run.limit or ("max_requests" if run.requests >= limits.max_requests - 1 else None)
    tools = [] if last_for else agent.offered_tools()
    chars = agent.state.chars + agent.fixed_chars
    view = window(agent.state.transcript, chars, limits.max_context_chars, run.id)
    if view is None:
        end(agent, run, State.FAILED, run.limit or "context_overflow")
        return
    messages = wire_messages(agent.prompt.text, agent.state.transcript, view, run.id)
    if faults := check_pairing(messages):
        raise RuntimeError(f"An unlawful request is not sent: {faults}")
    agent.append(
        RequestSent(
            at=agent.now(),
            run_id=run.id,
            number=run.requests + 1,
            first=view.first,
            upto=view.upto,
            shrunk=view.shrunk,
            last_for=last_for,
        )
    )
    started = agent.now()
    # A run that is stopped waits for nothing more: the connection is closed at the next byte.
    deadline = Deadline(agent.clock, started + limits.run_s - run.elapsed_s(started), lambda: run.ended)
    try:
        reply = agent.model.reply(messages, tools, deadline, only_while(run, on_delta))
    except ModelError as error:
        agent.append(replies.failed(agent, run, error))
        return
    agent.append(replies.received(agent, run, reply, started))


def finish(agent: "Agent", run: RunState) -> None:
    """End a run whose last reply is there, under the name of what that reply was."""
    reply, request = run.reply, run.request
    text = reply.text if reply and reply.text and reply.text.strip() else None
    if reply is None or (request and request.last_for):
        end(agent, run, State.FAILED, run.limit, text)
    elif reply.finish_reason == "length":
        end(agent, run, State.FAILED, "length", text)
    elif reply.refusal or reply.finish_reason == "content_filter":
        end(agent, run, State.FAILED, "refused", reply.refusal or text)
    elif text is None:
        end(agent, run, State.FAILED, "empty_response")
    else:
        end(agent, run, State.COMPLETED, None, text)


def end(
    agent: "Agent",
    run: RunState,
    state: State,
    code: str | None,
    answer: str | None = None,
    call_code: str = "cancelled",
) -> None:
    """End a run, and answer each call that is still open with `call_code`: no id stays without one."""
    answers = tuple((call.id, closing(agent, call, call_code)) for call in run.current if call.result is None)
    agent.append(
        RunEnded(
            at=agent.now(),
            run_id=run.id,
            state=state,
            code=code,
            answer=answer,
            usage=run.usage,
            answers=answers,
        )
    )


def closing(agent: "Agent", call: CallState, code: str) -> ToolResult:
    """The answer to a call that the end of its run left open. A claimed write may have happened."""
    if call.phase == "running" and call.effect == "write":
        return gateway.stamped(agent, gateway.unknown_outcome(call.call.name))
    message = f"The run ended before this call was made ({code}). It was not done."
    return gateway.stamped(agent, gates.failed(call.call.name, code, message))


def only_while(run: RunState, on_delta: OnDelta | None) -> OnDelta | None:
    """Pass on what a model says while its run goes on; a stopped run says nothing more."""
    return (lambda text: None if run.ended else on_delta(text)) if on_delta else None
