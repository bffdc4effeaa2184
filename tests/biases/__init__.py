"""Biases beside weights of any magnitude, through every way in which tosaic quantizes."""
