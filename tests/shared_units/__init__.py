"""Networks in which a value shares a unit with a number far beyond it."""
