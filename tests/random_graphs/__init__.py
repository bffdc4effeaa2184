"""Random torch programs over the operator table, checked on every executor at every stage."""
