"""See specsweep/controller/hosting.py."""

from specsweep.controller.hosting import EngineStep as ActionModule

__all__ = ["ActionModule"]
