"""`Target`: the version, the profiles, the extensions and the level of TOSA that an implementation has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tosaic import _core

__all__ = ["Target", "profiles_named"]

_SEPARATOR = "+"


@dataclass(frozen=True)
class Target:
    """A target of TOSA, as a value. Functions that take the text of a target take a `Target`, too.

    Attributes
    ----------
    profiles : tuple of str
        ``"INT"``, ``"FP"`` or both.
    extensions : tuple of str
        Such as ``"int16"`` and ``"bf16"``.
    level : str
        ``"8K"``, or ``"none"`` for the level with the highest limits.
    version : str
        The version of the specification: ``"1.0"``.

    Raises
    ------
    InvalidGraph
        A part is unknown, there is no profile, or an extension lacks its profile.

    Examples
    --------
    >>> from tosaic.lowering import Target
    >>> target = Target.parse("tosa-1.0+int16+int")
    >>> str(target), target.version, target.has_floats, "int16" in target
    ('TOSA-1.0+INT+int16', '1.0', False, True)
    >>> str(Target(("FP",), ("bf16",)))
    'TOSA-1.0+FP+bf16'
    """

    profiles: tuple[str, ...]
    extensions: tuple[str, ...] = ()
    level: str = "8K"
    version: str = "1.0"

    def __post_init__(self) -> None:
        for name, value in _core.parse_target(str(self)).items():
            object.__setattr__(self, name, value)

    @classmethod
    def parse(cls, text: str | Target) -> Target:
        """Returns the target of a text such as ``"TOSA-1.0+INT"``; returns a `Target` unchanged.

        Raises
        ------
        InvalidGraph
            As above, or the version is unknown.
        """
        return text if isinstance(text, Target) else _parsed(text)

    @property
    def has_integers(self) -> bool:
        """True for a target with profile INT."""
        return "INT" in self.profiles

    @property
    def has_floats(self) -> bool:
        """True for a target with profile FP."""
        return "FP" in self.profiles

    def __contains__(self, part: str) -> bool:
        """Returns whether the target has a profile or an extension."""
        return part in self.profiles or part in self.extensions

    def __str__(self) -> str:
        """Returns the text, with parts in the order of the specification; without the level 8K."""
        level = () if self.level == "8K" else (self.level,)
        return _SEPARATOR.join([f"TOSA-{self.version}", *self.profiles, *self.extensions, *level])


@lru_cache(maxsize=256)
def _parsed(text: str) -> Target:
    return Target(**_core.parse_target(text))


def profiles_named(text: str) -> frozenset[str]:
    """Returns the profiles that a text of another tool names, which may have parts that tosaic does not know.

    Examples
    --------
    >>> from tosaic.base.target import profiles_named
    >>> sorted(profiles_named("TOSA-1.0+INT+u55"))
    ['INT']
    """
    return frozenset(text.split(_SEPARATOR)) & {"INT", "FP"}
