"""Attentions that hide keys in many spellings, and how accurate their integers are."""
