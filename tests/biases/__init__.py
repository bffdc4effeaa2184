"""Biases with weights of any magnitude, through every way in which tosaic quantizes."""
