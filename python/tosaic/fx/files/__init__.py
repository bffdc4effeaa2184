"""Files of torch: what they name is imported, and what could run code is left out."""
