"""Random torch modules: views, writes into parts, masks and large constants, dtypes, states, empty tensors.

    programs    a module as data: leaves, steps, statements that write; its source, and its values in variants
    building    builds a module step by step, with the operands and bounds of `random_graphs`
    rows        the steps that `random_graphs` lacks, most of them views and writes
    generate    the module of a seed
    checking    export, import, run, lower, quantize, lower to integers, reference model
    shrinking   removes steps from a failing module

``python -m random_modules`` (in ``tests``) prints or checks single seeds and shrinks those that fail.
"""
