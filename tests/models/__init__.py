"""The networks of the whole-model tests, and the code that runs and measures them."""
