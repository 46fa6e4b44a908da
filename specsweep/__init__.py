"""specsweep: the contract that the Ansible half and the analysis half share."""
