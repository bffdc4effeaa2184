"""Lowered programs: pipelines, layouts, sidecars and TOSA files."""
