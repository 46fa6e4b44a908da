"""See specsweep/controller/hosting.py."""

from specsweep.controller.hosting import RestoreStep as ActionModule

__all__ = ["ActionModule"]
