"""Opens programs from all their forms: files, exported programs, graphs."""
