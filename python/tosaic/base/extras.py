"""Names the extra of tosaic that installs a missing optional package.

Torch and packages that need it are imported in many places. The message of a failed import is completed only
in the few entry points for users, such as the decorator of the public functions and the names that packages
load on first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_EXTRAS = {"torch": "torch", "torchao": "torch", "executorch": "executorch"}


class MissingExtraError(ModuleNotFoundError):
    """An optional package is not installed, or lacks a module; the text names the extra."""


def missing_extra(where: str, error: ModuleNotFoundError) -> MissingExtraError | None:
    """Returns the error to raise instead of an import error; None if the import error should stay.

    Parameters
    ----------
    where : str
        The function that needs the package, for the text.
    error : ModuleNotFoundError
    """
    package, _, module = (error.name or "").partition(".")
    extra = _EXTRAS.get(package)
    if extra is None or isinstance(error, MissingExtraError):
        return None
    lacking = f", which the installed {package} lacks: pip install --upgrade" if module else ": pip install"
    return MissingExtraError(f"{where} needs {error.name}{lacking} 'tosaic[{extra}]'", name=error.name)


@contextmanager
def naming_extras(where: str) -> Iterator[None]:
    """Names the extra in import errors of a block.

    Raises
    ------
    MissingExtraError
        Instead of an error about an optional package.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (named := missing_extra(where, error)) is not None:
            raise named from error
        raise
