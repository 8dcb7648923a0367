"""Taking up a saved record: what may come back, and what of it a person decides anew. Nothing runs here."""

from typing import TYPE_CHECKING

from agent import gateway
from agent.arguments import json_text, value_of
from agent.loop import closing, end
from agent.record import (
    CallAnswered,
    CallFinished,
    Event,
    MessagesRestored,
    ReplyReceived,
    RunRetried,
    State,
    ToolSwitched,
    UserMessage,
)
from agent.state import CallState, RunState
from agent.transcript import lawful_messages

if TYPE_CHECKING:
    from agent.agent import Agent


def admissible(agent: "Agent", event: Event) -> bool:
    """Whether an agent with this record could have appended this event."""
    run = agent.state.run
    match event:
        case MessagesRestored():
            restored = lawful_messages(value_of(event.messages))
            return run is None and not agent.state.transcript and json_text(restored) == event.messages
        case UserMessage():
            return (run is None or run.ended) and all(one.run_id != event.run_id for one in agent.events)
        case ToolSwitched():
            return event.tool in agent.tools
        case ReplyReceived(calls=calls):
            fresh = {call.id for call in calls if call.id} - agent.state.call_ids
            return _goes_on(run, event) and len(fresh) == len(calls)
        case RunRetried():
            return run is not None and run.id == event.run_id and run.can_retry
        case _:
            return _goes_on(run, event)


def take_up(agent: "Agent") -> None:
    """Bring a loaded run back to a person where one is asked; else end it as abandoned.

    A card that nobody decided comes back under a new id, and so does an approval that had not run.
    What was being worked on beside it is answered, as far as the store knows.
    """
    run = agent.state.run
    if run is None or run.ended:
        return
    at = agent.events[-1].at
    for call in [*run.in_phase("running", "open")]:
        _answer(agent, run, call, at)
    if not any(run.in_phase("asked", "approved")):
        end(agent, run, State.CANCELLED, "abandoned")
        return
    agent.expire()
    for call in [*run.in_phase("asked", "approved")] if not run.ended else ():
        gateway.ask_again(agent, run, call, at)


def _answer(agent: "Agent", run: RunState, call: CallState, at: float) -> None:
    """Answer a call that nobody works on any more, at the time of the record: no time passed since."""
    result = gateway.aftermath(agent, run, call) or closing(agent, call, "cancelled")
    if call.phase == "running":
        event = CallFinished(
            at=at, run_id=run.id, call_id=call.id, verdicts=(), result=result, executed_digest=call.digest
        )
    else:
        event = CallAnswered(
            at=at,
            run_id=run.id,
            call_id=call.id,
            verdicts=(),
            digest="",
            arguments=None,
            effect=None,
            result=result,
        )
    agent.append(event)


def _goes_on(run: RunState | None, event: Event) -> bool:
    return run is not None and run.id == event.run_id and not run.ended
