"""Every text of the page, in one language each. The defaults are English."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.record import State
from agent.timeline import Lane, RowKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """The catalogue. A field with `{names}` is filled in with `str.format`."""

    # the page as a whole
    title: str = "Glassloop"
    tagline: str = "An agent loop you can see through"
    scripted: str = "Scripted · offline, not an AI"
    failed_draw: str = "This page could not be drawn. Reload it; what ran has run, nothing runs again."

    # the chat column
    show_earlier: str = "Show earlier messages"
    welcome: str = (
        "The model may only ask for tools. A program judges each call, you decide what changes data."
    )
    try_one: str = "Try one of these, or write your own:"
    suggestions: tuple[tuple[str, str], ...] = (
        ("Needs your approval", "Note that my flight is at nine"),
        ("Takes two rounds", "What time is it in Asia/Tokyo? Then add 17 and 25."),
        ("Fails, and says why", "Read the file returns.md"),
        ("Reads a document that lies", "Search for refund"),
    )
    ask_here: str = "Write a message"
    input_working: str = "Wait for the run to end, or stop it"
    input_waiting: str = "Decide above first, or stop the run"
    stop: str = "Stop"
    retry: str = "Retry"
    retry_hint: str = "Sends the last request again. What the program did is not done again."
    retry_spent: str = "This run has nothing left for another try. What it did stands; write a new message."
    reasoning: str = "Reasoning"
    waiting: str = "Waiting for the model’s reply"
    retrying: str = "{sentence} The request goes out again after {seconds:.1f} s."
    call_as_text: str = "What looks like a tool call above is text of the model. It was not run."
    new_conversation: str = "New conversation"
    too_long: str = "Shown are the first {shown:,} of {count:,} characters."
    busy: str = (
        "The message was not sent: a run is still at work. It stands in the box again; try in a moment."
    )
    refused: str = "The message was not sent: {sentence} It stands in the box again."
    card_closed: str = "This card was decided before, or is no longer open. The first decision counts."
    going_down: str = "The server is going down and starts nothing new. Reload the page in a moment."

    # the approval card
    card: str = "Waiting for you"
    cards: str = "Waiting for you: {count} decisions"
    risk_write: str = "changes data"
    risk_third_party: str = "sends data away"
    runs_exactly: str = "Exactly this will run, once:"
    right_to_left: str = "The same in the order in which it runs, right-to-left letters as escapes:"
    expires_in: str = "expires in {minutes}:{seconds:02d}"
    expired: str = "expired"
    card_facts: str = "call {number} of the run · {tool} · digest {digest}"
    approve: str = "Approve"
    deny: str = "Deny"
    edit: str = "Edit"
    reason: str = "Reason for a denial (the model is told; may stay empty)"
    edit_title: str = "Change the arguments. What you enter is checked by the same gates."
    approve_edited: str = "Approve as edited"
    cancel_edit: str = "Back"
    not_changed: str = "Not changed: {sentence}"
    whole_arguments: str = "The arguments, as JSON"
    unreadable: str = "This cannot be read: {sentence}"

    # the sidebar
    model_choice: str = "Model"
    model_scripted: str = "A script plays the model: plain requests only, no key, no network."
    model_named: str = "The model of the settings"
    model_real: str = "{name} answers, at {host}."
    settings_fault: str = "The settings cannot be used: {sentence} The script plays instead."
    begins_anew: str = "Another model begins a new conversation."
    leaves: str = "What leaves this machine"
    leaves_nothing: str = "Nothing. The scripted model and all tools run here."
    leaves_model: str = "The conversation and what tools return go to {host}, the model's endpoint."
    leaves_tool: str = "{tool} sends its arguments to {host}; you are asked first."
    tools: str = "Tools"
    tools_hint: str = "Switched off, a tool is refused for this conversation, whatever the model asks."
    effect_none: str = "computes"
    effect_read: str = "reads"
    effect_write: str = "changes data, asks you first"
    stays_here: str = "stays on this machine"
    goes_to: str = "goes to {host}"
    limits: str = "Limits of a run"
    limit_rows: tuple[tuple[str, str], ...] = (
        ("max_tool_calls", "tool calls"),
        ("max_requests", "model requests"),
        ("max_identical_calls", "identical reads"),
        ("max_bad_arguments", "wrong arguments in a row"),
        ("tool_s", "seconds a tool"),
        ("run_s", "seconds in all, your time not counted"),
        ("approval_s", "seconds to decide"),
        ("max_tokens", "tokens"),
    )

    # the protocol column, around what is drawn
    run_choice: str = "Run"
    run_named: str = "Run {number} of {count}"
    view: str = "View"
    view_sequence: str = "Sequence"
    view_gates: str = "Gates"
    view_wire: str = "Wire"
    view_ledger: str = "Ledger"
    nothing_yet: str = "Ask something: each step of the protocol appears here as it happens."
    step: str = "Step"
    step_named: str = "Request {number}"
    request_sent: str = "What was sent to the model"
    earlier_messages: str = "{count} earlier messages were sent along, as they stood."
    show_all: str = "Show all of it, tool schemas too"
    reply_received: str = "What came back"
    reply_missing: str = "Nothing has come back yet."
    final_request: str = "The last request of the run was sent without tools ({code})."

    # the protocol column
    lanes: Mapping[Lane, str] = field(
        default_factory=lambda: {"you": "You", "program": "Program", "model": "Model", "tools": "Tools"}
    )
    rows: Mapping[RowKind, str] = field(
        default_factory=lambda: {
            "message": "message",
            "request": "request {number}",
            "request_failed": "failed: {code}",
            "retried": "sends it again",
            "thinks": "thinks",
            "says": "says",
            "asks": "asks {call} {tool}",
            "note": "noted: {detail}",
            "answered": "{call} does not run: {code}",
            "deferred": "{call} waits for {leader}",
            "approval": "may {call} run?",
            "runs": "runs {call}",
            "result": "result {call}",
            "approved": "approves {call}",
            "denied": "denies {call}",
            "expired": "{call}: nobody decided in time",
            "ended": "{state}",
            "switched": "switches {tool} {code}",
            "restored": "brings earlier messages",
        }
    )
    row_ends: str = "{state}: {code}"
    row_request: str = "request {number} · {count}\u00a0messages"
    row_request_one: str = "request {number} · 1\u00a0message"
    row_last: str = "{request} · the last, without tools"
    row_again: str = "failed: {code}, again in {seconds} s"
    row_same: str = "{call} takes the result of an earlier call"
    row_writes: str = "runs {call}, once"
    row_failed: str = "result {call}: {code}"
    row_untrusted: str = "result {call} · untrusted text"
    row_edited: str = "approves {call}, edited"
    row_spoken: str = "{source} to {target}: {what}"
    row_spoken_alone: str = "{source}: {what}"
    row_not_yet: str = "{row} (not yet)"
    sequence: str = "What happened, in order"
    not_yet: str = "not yet"
    legend_asks: str = "the model asks"
    legend_does: str = "the program does"
    call_mark: str = "c{number}"
    call_unknown: str = "c?"
    call_title: str = "Call {number} of this run, id {call_id}"
    states: Mapping[State, str] = field(
        default_factory=lambda: {
            State.RECEIVED: "Received",
            State.PLANNING: "Planning",
            State.WAITING_APPROVAL: "Waiting for you",
            State.WAITING_TOOL: "Running tools",
            State.OBSERVING: "Observing",
            State.COMPLETED: "Completed",
            State.FAILED: "Failed",
            State.CANCELLED: "Cancelled",
        }
    )
    state_hints: Mapping[State, str] = field(
        default_factory=lambda: {
            State.RECEIVED: "your message is in the record",
            State.PLANNING: "the model is asked what to do next",
            State.WAITING_APPROVAL: "a person has to decide; the clock stands",
            State.WAITING_TOOL: "the program runs what passed the gates",
            State.OBSERVING: "results are recorded and go back to the model, which plans again",
            State.COMPLETED: "an end: the model answered and asked for nothing more",
            State.FAILED: "an end: a limit was met or something broke; a code says what",
            State.CANCELLED: "an end: somebody stopped it",
        }
    )
    state_row: str = "Where this run stands"
    meters: str = "What this run has used of its limits"
    meter_calls: str = "tool calls"
    meter_requests: str = "requests"
    meter_errors: str = "errors in a row"
    meter_errors_hint: str = "Tool calls in a row whose arguments were wrong"
    meter_clock: str = "clock"
    meter_stopped: str = "clock, stopped for you"
    meter_tokens: str = "tokens"
    meter_of: str = "{used} / {limit}"
    meter_seconds: str = "{used} / {limit} s"
    meter_about: str = "≈ {used}"
    meter_tokens_hint: str = "Of {limit} at most"
    gates: str = "The gates of each call"
    gate_names: Mapping[str, str] = field(
        default_factory=lambda: {
            "identity": "id",
            "budget": "budget",
            "known": "known",
            "parse": "parse",
            "validate": "validate",
            "repeat": "repeat",
            "permission": "permission",
            "approval": "approval",
            "execute": "execute",
            "record": "record",
        }
    )
    gate_questions: Mapping[str, str] = field(
        default_factory=lambda: {
            "identity": "Has this very call been made before?",
            "budget": "Is anything left to spend: calls, time, tokens?",
            "known": "Is there a tool of exactly this name, and is it switched on?",
            "parse": "Are the arguments one strict JSON object?",
            "validate": "Do the arguments fit the schema of the tool?",
            "repeat": "Was the same asked before in this run?",
            "permission": "May this owner do this, with these arguments?",
            "approval": "Must a person agree, and did one?",
            "execute": "Did the tool run, in time and without an error?",
            "record": "Is the result cut to size, labelled and stored?",
        }
    )
    gate_title: str = "{question} {outcome}"
    gate_passed: str = "Yes: passed."
    gate_asks: str = "A person is asked."
    gate_waits: str = "It waits for another call."
    gate_refused: str = "It stopped here: {code}."
    gate_same: str = "It stopped here, with the result of an earlier call."
    gate_unreached: str = "The call did not get here."
    pill_asks: str = "waiting for you"
    pill_waits: str = "waiting for another call"
    pill_same: str = "same as before"
    call_open: str = "open"
    call_ok: str = "ok"
    no_calls: str = "The model has asked for no tool yet."
    model_says: str = "The model says"
    program_did: str = "The program did"
    quoted: str = "“{words}”"
    said_nothing: str = "nothing"
    did_nothing: str = "Nothing."
    deed_ran: str = "ran once"
    deed_failed: str = "ran, and ended with {code}"
    deed_refused: str = "did not run: {code}"
    deed_same: str = "did not run again: it takes an earlier result"
    deed_unknown: str = "outcome unknown"
    deed_waits: str = "1 call waits for you"
    deeds_wait: str = "{count} calls wait for you"
    deed_harmless: str = "ran, and changed nothing"
    receipt: str = "approved {approved} · ran {executed} · {verdict}"
    receipt_same: str = "the same"
    receipt_other: str = "NOT THE SAME"


ENGLISH = Texts()
