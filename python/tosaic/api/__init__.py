"""The main calls: lower, check, compare, partition and the like."""
