"""See specsweep/controller/collecting.py."""

from specsweep.controller.collecting import FinishStep as ActionModule

__all__ = ["ActionModule"]
