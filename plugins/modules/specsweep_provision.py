#!/usr/bin/python
"""Lay a file that was sent to this host in its place: an archive of wheels, or a model."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: specsweep_provision
short_description: Install a part of the embedded engine on a host
options:
  home: {type: path, required: true, description: Folder of specsweep on the host.}
  name: {type: str, required: true, description: Name of the file.}
  size: {type: int, required: true, description: Its size in bytes.}
  unpack: {type: bool, required: true, description: Unpack it (it holds the folder site).}
  source: {type: path, description: Where the file was sent; without it only say whether it is present.}
author: specsweep
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "required": True},
            "name": {"type": "str", "required": True},
            "size": {"type": "int", "required": True},
            "unpack": {"type": "bool", "required": True},
            "source": {"type": "path"},
        }
    )
    given = module.params
    home = Path(given["home"])
    # An unpacked archive leaves a mark of its name and size.
    target = home / ("installed" if given["unpack"] else "models") / given["name"]
    if given["source"] is None:
        if given["unpack"]:
            present = target.exists() and target.read_text() == str(given["size"])
        else:
            present = target.exists() and target.stat().st_size == given["size"]
        module.exit_json(changed=False, present=present)
    target.parent.mkdir(parents=True, exist_ok=True)
    if given["unpack"]:
        with tarfile.open(given["source"]) as tar:
            tar.extractall(str(home))
        target.write_text(str(given["size"]))
    else:
        partial = target.with_name(target.name + ".partial")
        shutil.copyfile(given["source"], str(partial))
        partial.replace(target)
    module.exit_json(changed=True, present=True)


if __name__ == "__main__":
    main()
