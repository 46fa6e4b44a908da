"""See specsweep/controller/measuring.py."""

from specsweep.controller.measuring import ReadyStep as ActionModule

__all__ = ["ActionModule"]
