"""See specsweep/controller/collecting.py."""

from specsweep.controller.collecting import CollectStep as ActionModule

__all__ = ["ActionModule"]
