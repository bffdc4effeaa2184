"""Groups of random dags, compared with all groupings, and random programs that are split and run."""
