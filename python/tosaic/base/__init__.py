"""The code that all modules share: options, dtypes, arrays, files, processes and problems."""
