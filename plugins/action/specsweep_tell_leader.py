"""See specsweep/controller/group.py."""

from specsweep.controller.group import TellLeaderStep as ActionModule

__all__ = ["ActionModule"]
