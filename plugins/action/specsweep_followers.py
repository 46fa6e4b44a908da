"""See specsweep/controller/group.py."""

from specsweep.controller.group import FollowersStep as ActionModule

__all__ = ["ActionModule"]
