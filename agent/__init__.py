"""Glassloop's engine: an agent that may only ask for tools, and a program that decides."""

from agent.agent import Agent
from agent.limits import Limits
from agent.policy import Policy
from agent.record import State
from agent.run import Run

__all__ = ["Agent", "Limits", "Policy", "Run", "State"]
