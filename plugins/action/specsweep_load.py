"""See specsweep/controller/measuring.py."""

from specsweep.controller.measuring import LoadStep as ActionModule

__all__ = ["ActionModule"]
