"""Read a results folder and say which budget pays, up to which concurrency, and why."""
