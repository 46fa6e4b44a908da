"""See specsweep/controller/provisioning.py."""

from specsweep.controller.provisioning import ProvisionStep as ActionModule

__all__ = ["ActionModule"]
