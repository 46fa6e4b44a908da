"""See specsweep/controller/hosting.py."""

from specsweep.controller.hosting import HostStep as ActionModule

__all__ = ["ActionModule"]
