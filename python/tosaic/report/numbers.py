"""Formats numbers for people."""

from __future__ import annotations

import math


def small(value: float) -> str:
    """Formats a number that may be tiny, such as an error: ``0``, ``3.1e-07``, ``inf``.

    Examples
    --------
    >>> small(0.0), small(3.14159e-7), small(0.25)
    ('0', '3.1e-07', '0.25')
    """
    if value == 0:
        return "0"
    return f"{value:.2g}" if math.isfinite(value) else str(value)


def decibels(value: float) -> str:
    """Formats a signal to noise ratio.

    Examples
    --------
    >>> decibels(151.26), decibels(math.inf)
    ('151.3', 'equal')
    """
    return "equal" if value == math.inf else f"{value:.1f}" if math.isfinite(value) else str(value)


def ulps(value: float) -> str:
    """Formats a distance in units in the last place.

    Examples
    --------
    >>> ulps(3.0), ulps(0.52), ulps(12345.5), ulps(1234567.0)
    ('3', '0.5', '12,346', '1.2e+06')
    """
    if not math.isfinite(value):
        return str(value)
    if value >= 1_000_000:
        return f"{value:.1e}"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def memory(size: float) -> str:
    """Formats a number of bytes.

    Examples
    --------
    >>> memory(512), memory(20_480), memory(5_000_000)
    ('512 B', '20.0 KiB', '4.8 MiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def short(number: int) -> str:
    """Formats a number in at most seven characters.

    Examples
    --------
    >>> short(99_999), short(926_400), short(115_040_000)
    ('99,999', '926 k', '115.0 M')
    """
    if number < 100_000:
        return f"{number:,}"
    if number < 10_000_000:
        return f"{number / 1e3:,.0f} k"
    return f"{number / 1e6:.1f} M" if number < 1_000_000_000 else f"{number / 1e9:.1f} G"


def time(seconds: float) -> str:
    """Formats a duration.

    Examples
    --------
    >>> time(0.00003), time(0.0123), time(4.2)
    ('0.03 ms', '12.3 ms', '4.2 s')
    """
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e3:.2f} ms"


def count(number: int, what: str) -> str:
    """Formats a number of things.

    Examples
    --------
    >>> count(1, "node"), count(3, "node")
    ('1 node', '3 nodes')
    """
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
