"""See specsweep/controller/collecting.py."""

from specsweep.controller.collecting import UnsettledStep as ActionModule

__all__ = ["ActionModule"]
