"""Where the time of runs and lowerings goes: measured, as data, and as trace files."""
