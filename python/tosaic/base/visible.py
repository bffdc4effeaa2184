r"""`visible`: escapes characters in texts from files that would control terminals, pages or logs.

::

    the name                  in outputs
    conv, ESC, [2J            conv\u001b[2J        an escape sequence, which would clear the screen
    x, RLO, gpj.exe           x\u202egpj.exe       text that is shown from right to left
    a, newline, ok: fine      a\nok: fine          a name that looks like a line of a report

Names, module paths and source files come from untrusted files. All outputs of tosaic are escaped here: output
of commands, reports (`tosaic.report`), messages of errors, log messages and names of files in messages.
JSON output has the escapes of JSON strings instead.
"""

from __future__ import annotations

import re

# Control characters except newline and tab; characters that change the direction of text, or are invisible;
# separators of lines and paragraphs; and lone surrogates, which no encoding has.
_ACTING = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u2069"
    "\\ufeff\\ufff9-\\ufffb\\ud800-\\udfff]"
)


def visible(text: str) -> str:
    r"""Returns a text in which characters that act on a terminal are escapes such as ``\u001b``.

    Newlines and tabs stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return _ACTING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """Returns a name or a cell of a table as `visible` text in one line: newlines and tabs are escapes."""
    if text.isascii() and text.isprintable():
        return text
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")
