"""See specsweep/controller/serving.py."""

from specsweep.controller.serving import RenderStep as ActionModule

__all__ = ["ActionModule"]
