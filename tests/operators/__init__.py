"""Every overload of the operator list against torch: what is drawn, how it is run, what must agree.

    names      the list, and the overloads that torch has of each name
    values     tensors as data: shape, dtype, kind of values, seed
    draw       strategies for shapes, axes, dtypes and values
    rows_*     one row an overload: what arguments it takes
    table      all rows
    checking   export, import, run, lower, run again, reference model; the bounds

``python -m operators --help`` (in ``tests``) runs single overloads and repeats a printed case.
"""
