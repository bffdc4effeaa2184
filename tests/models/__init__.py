"""The networks that whole-model tests run on."""
