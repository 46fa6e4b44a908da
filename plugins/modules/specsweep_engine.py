#!/usr/bin/python
"""Find the engine on the host: its command, version and flags; the identity of model and drafter; the disk."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: specsweep_engine
short_description: Find the engine on a host and read its version and flags
options:
  commands: {type: list, elements: list, required: true, description: Candidates; the first that exists is taken.}
  environment: {type: dict, description: Environment of the engine.}
  help: {type: list, elements: str, description: Arguments that print the flags.}
  version: {type: dict, description: Commands, arguments and pattern that give the version.}
  paths: {type: dict, description: Name to path or id of model files.}
author: specsweep
"""


def find(commands: list) -> list | None:
    """The first command whose program exists, with its full path."""
    for command in commands:
        program = shutil.which(command[0])
        if program:
            return [program, *command[1:]]
    return None


def ask(argv: list, environment: dict) -> tuple[int, str]:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=180,
            env=dict(os.environ, **environment),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, "no answer within 180 s"
    except OSError as error:
        return 1, f"{argv[0]}: {error.strerror}"
    return done.returncode, done.stdout


def identity(path: str) -> str:
    """Identity of a model: for a file its size and the hash of its ends, for a folder its files; else the id itself."""
    here = Path(path)
    digest = hashlib.sha256()
    if here.is_file():
        size = here.stat().st_size
        digest.update(str(size).encode())
        with here.open("rb") as data:
            digest.update(data.read(1 << 20))
            data.seek(max(0, size - (1 << 20)))
            digest.update(data.read(1 << 20))
        return "%s (%d bytes, %s)" % (here.name, size, digest.hexdigest()[:12])
    if here.is_dir():
        for file in sorted(item for item in here.rglob("*") if item.is_file()):
            digest.update(("%s %d\n" % (file.relative_to(here), file.stat().st_size)).encode())
            if file.suffix == ".json" and file.stat().st_size < 1 << 20:
                digest.update(file.read_bytes())
        return f"{here.name} (folder, {digest.hexdigest()[:12]})"
    return path


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "commands": {"type": "list", "elements": "list", "required": True},
            "environment": {"type": "dict", "default": {}},
            "help": {"type": "list", "elements": "str", "default": ["--help"]},
            "version": {"type": "dict"},
            "paths": {"type": "dict", "default": {}},
        }
    )
    given = module.params
    environment = {name: str(value) for name, value in given["environment"].items()}
    command = find(given["commands"])
    if command is None:
        wanted = " or ".join(str(item[0]) for item in given["commands"])
        module.fail_json(
            msg=f"engine: expected {wanted} on the host's PATH; it is not there: install it or set engine_command"
        )
    code, text = ask([*command, *given["help"]], environment)
    flags = sorted(set(re.findall(r"(?<![\w-])--?[A-Za-z][A-Za-z0-9-]*", text)))
    if code not in (0, 2) or len(flags) < 3:
        last = (text.strip().splitlines() or ["it printed nothing"])[-1]
        module.fail_json(
            msg="engine: {} {} did not print its flags: {}".format(" ".join(command), " ".join(given["help"]), last)
        )
    version = None
    if given["version"]:
        for question in [*given["version"]["commands"], [*command, *given["version"]["arguments"]]]:
            _, shown = ask(question, environment)
            match = re.search(given["version"]["pattern"], shown)
            if match:
                version = match.group(1).strip()
                break
    module.exit_json(
        changed=False,
        command=command,
        flags=flags,
        flags_sha256=hashlib.sha256("\n".join(flags).encode()).hexdigest(),
        version=version,
        identities={name: identity(path) for name, path in given["paths"].items() if path},
    )


if __name__ == "__main__":
    main()
