"""See specsweep/controller/hosting.py."""

from specsweep.controller.hosting import GiveUpStep as ActionModule

__all__ = ["ActionModule"]
