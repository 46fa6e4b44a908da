"""What runs on a host: standard library only (the load client also needs aiohttp), Python 3.9 and newer.

Ansible's modules import this package, and its files are laid on the host for what outlives a module call:
the load client, the guard and the embedded engine's launcher.
"""
