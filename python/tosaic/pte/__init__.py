"""ExecuTorch's ``.pte`` files: their contents, and their methods as programs of tosaic.

::

    file.py          `load_pte`: files and their methods
    plain.py         tensors, delegates and instructions as plain data
    opening/sources.py       TOSA programs that the caller gives for delegates
    recorded.py      checks that a sidecar describes its file
    program/program.py       a method as a program that runs
    containers.py    the structure of arguments and results, from the text that torch writes
    method_graph.py  a method as a graph with a signature
    facts.py           the contents of a method
    instructions.py    its instructions as nodes, one by one
    values.py          its values: numbers, and tensors as values of the graph
    calls.py           a kernel call as nodes, by the rows of `tosaic.torch_operators`
    rows.py            the row of an operator, from its name and arguments
    memory.py          the values in the planned memory, by place
    payloads.py      the formats of payloads
    delegate_calls.py  the function that runs a delegate

Nothing here imports torch or ExecuTorch.
"""

from __future__ import annotations

from tosaic.base.public_names import names_of_stub

__getattr__, __dir__ = names_of_stub(__name__, __path__[0])
