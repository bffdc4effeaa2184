"""Random torch programs over the operator table, run at every stage and on every engine and compared."""
