"""Become the engine's process: `launch.py PROGRAM.json` (argv, environment, directory), no shell, no quoting."""

import json
import os
import sys
from pathlib import Path


def main() -> None:
    with Path(sys.argv[1]).open() as source:
        program = json.load(source)
    environment = dict(os.environ, **program["environment"])
    for name in [name for name in environment if name.startswith("SUPERVISOR_")]:
        del environment[name]
    os.chdir(program.get("directory") or "/")
    os.execvpe(program["argv"][0], program["argv"], environment)


if __name__ == "__main__":
    main()
