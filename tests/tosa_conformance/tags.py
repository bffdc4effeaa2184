"""ERRORIF tags of the suite's negative tests and the rule of ours that rejects each."""

from __future__ import annotations

import re

RULES: dict[str, str] = {}


def tag_of(test_name: str) -> str | None:
    """``WrongRank`` of ``argmax_ERRORIF_WrongRank_...``; None for a positive test."""
    found = re.search(r"_ERRORIF_([A-Za-z0-9]+)", test_name)
    return found.group(1) if found else None


def rejected_by_rule_of(tag: str, reasons: str) -> bool:
    """One of the reasons is worded as the tag's rule words it."""
    return tag in RULES and re.search(RULES[tag], reasons) is not None
