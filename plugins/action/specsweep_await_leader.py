"""See specsweep/controller/group.py."""

from specsweep.controller.group import AwaitLeaderStep as ActionModule

__all__ = ["ActionModule"]
