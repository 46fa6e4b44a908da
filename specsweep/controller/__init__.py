"""The controller's half of each step: what the action plugins in plugins/action do.  Needs ansible-core."""
