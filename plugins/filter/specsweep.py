"""Filters for templates of units."""

from specsweep.systemd import environment_file, quote


class FilterModule:
    """systemd_quote: one argument of ExecStart=; systemd_environment: text of an EnvironmentFile=."""

    def filters(self) -> dict:
        return {"systemd_quote": quote, "systemd_environment": environment_file}
