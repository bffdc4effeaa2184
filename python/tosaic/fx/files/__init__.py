"""Reads files of torch: imports the libraries that a file names, and leaves out all that could run code."""
