"""Published runs beside their estimates."""

from __future__ import annotations


def section() -> str:
    return ""
