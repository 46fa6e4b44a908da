"""See specsweep/controller/group.py."""

from specsweep.controller.group import FollowStep as ActionModule

__all__ = ["ActionModule"]
