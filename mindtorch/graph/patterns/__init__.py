"""Patterns: what stretches of a graph compute, found in it and checked by running them."""

from .explain import explain
from .find import Flows, Instance, find_patterns, library, loaded
from .flow import Flow
from .pattern import Check, Found, Pattern, Refused, Trial, agree, form_of
from .rerun import CannotRun

__all__ = [
    "CannotRun",
    "Check",
    "Flow",
    "Flows",
    "Found",
    "Instance",
    "Pattern",
    "Refused",
    "Trial",
    "agree",
    "explain",
    "find_patterns",
    "form_of",
    "library",
    "loaded",
]
