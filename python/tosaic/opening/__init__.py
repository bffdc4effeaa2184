"""Programs from whatever holds one: files, exported programs, graphs."""
