"""Which nodes of a program go to which target: claimants."""
