"""Groups of random dags, held against all groupings, and random programs that are split and run."""
