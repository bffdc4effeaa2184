"""What all modules use: options, dtypes, arrays, files, processes and problems."""
