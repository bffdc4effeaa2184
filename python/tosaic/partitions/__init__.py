"""Programs whose nodes go to several targets: claimants, the plan of who takes what, and what is lowered."""
