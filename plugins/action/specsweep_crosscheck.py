"""See specsweep/controller/crosschecking.py."""

from specsweep.controller.crosschecking import CrosscheckStep as ActionModule

__all__ = ["ActionModule"]
