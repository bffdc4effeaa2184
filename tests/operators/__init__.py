"""Compares every overload of the operator list with torch on randomly drawn calls.

    names      the operator list, and the overloads that torch has of each name
    values     tensors and calls as data: shape, dtype, kind of values, seed
    draw       strategies for shapes, axes, dtypes and values
    rows_*     one row for each overload: the arguments that it takes
    table      all rows
    checking   export, import, run, lower, run again, reference model; the bounds
    running    draws many calls of one overload and shrinks those that fail
    integers   the same calls between dequantize and quantize nodes, lowered to integers

``python -m operators`` (in ``tests``) runs single overloads and repeats a printed case; see ``--help``.
"""
