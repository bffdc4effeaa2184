"""Rows: into which canonical nodes each call of a torch operator is read. Nothing here imports torch.

A *row* describes one operator: a function of a `call.Call` and of the call's arguments, in the order of the
schema, with defaults filled in and tensors as `value.Ref`. It emits nodes and returns the result (a `Ref`, or
a list with one entry per result). It returns None if it cannot read the call; the call then becomes an opaque
node. Shapes and dtypes come from what torch recorded (``c.shape``, ``c.dtype``, ``c.types``); the builder
checks them against the core's own inference.

`table.TABLE` has all rows by schema name: ``conv2d``, ``add.Tensor``. ``X_copy`` and the in-place ``X_`` use
the row of ``X``. A reader of programs implements `call.Call`; `tosaic.fx.reading.importer` does so for
``ExportedProgram``.
"""
