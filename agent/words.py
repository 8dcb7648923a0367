"""Sentences for people: what each end of a run means, and what can be done next."""

from collections.abc import Mapping

ENDS: Mapping[str, str] = {
    "max_tool_calls": "The run used up its tool calls. Ask for less at a time.",
    "max_requests": "The run used up its requests to the model. Ask for less at a time.",
    "repeated_call": "The model kept asking for the same. Try other words.",
    "bad_arguments_limit": "The model asked for tools with wrong arguments twice in a row. Try other words.",
    "run_timeout": "The run took too long. Try again, or ask for less.",
    "token_limit": "The run used up its tokens. Ask for less, or begin anew.",
    "approval_expired": "Nobody decided in time. Nothing that waited was done; ask again.",
    "empty_response": "The model said nothing. Try again.",
    "refused": "The model refused to answer.",
    "length": "The answer was cut off: the model may not write more. Ask for a shorter one.",
    "context_overflow": "The conversation is too long for the model. Begin a new one.",
    "provider_error": "There is no answer from the model's server.",
    "provider_timeout": "The model's server did not answer in time. Try again.",
    "provider_rate_limited": "The model's server is too busy for an answer. Try again later.",
    "provider_auth": "The model's server wants another key. Check the settings.",
    "provider_protocol": "The answer of the model's server is of no use. Check its address, or try again.",
    "internal_error": "Something failed in this program. Nothing is left half done; try again.",
    "cancelled": "You stopped it.",
    "abandoned": "It was left before it ended.",
    "superseded": "A new message took its place.",
}
