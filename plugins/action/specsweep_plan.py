"""See specsweep/controller/planning.py."""

from specsweep.controller.planning import PlanStep as ActionModule

__all__ = ["ActionModule"]
