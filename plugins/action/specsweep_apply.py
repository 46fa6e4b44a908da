"""See specsweep/controller/serving.py."""

from specsweep.controller.serving import ApplyStep as ActionModule

__all__ = ["ActionModule"]
