"""Check what is inside clgraft's wheels: tag, machine of the C extensions, every file of the sources, and nothing else.

usage: check_wheels.py FOLDER
"""

from __future__ import annotations

import re
import struct
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("core", "kernels", "mxnet_ops", "caffe_layers", "plugins")
KINDS = (".c", ".cl", ".cpp", ".h", ".hpp", ".proto", ".py", ".txt")
MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine of ELF
GENERATED = {"_runtime.c", "_calls.c"}  # by cffi, next to the sources of some builds


def sources() -> set[str]:
    """Return the names inside a wheel of all files that belong into it, other than the C extensions."""
    files = {
        path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in KINDS
    }
    names = {f"clgraft/{path.as_posix()}" for path in files if path.name not in GENERATED}
    return names | {"clgraft/__init__.py", "clgraft/py.typed"}


def faults(wheel: Path, machine: str) -> list[str]:
    """Return what is wrong with a wheel, a sentence each."""
    found = []
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        expected = sources()
        extensions = {
            str(Path(name).with_name("_runtime.abi3.so")) for name in expected if name.endswith("abi/build.py")
        }
        extensions |= {
            str(Path(name).with_name("_calls.abi3.so")) for name in expected if name.endswith("calls/build.py")
        }
        if len(extensions) != 2:
            found.append(f"got C extensions {sorted(extensions)}, expected those of abi/build.py and calls/build.py")
        found += [f"got no {name}" for name in sorted((expected | extensions) - names)]
        found += [f"got {name}, which is none of its files" for name in sorted(names - expected - extensions)]
        for name in sorted(extensions & names):
            head = archive.read(name)[:20]
            code = struct.unpack("<H", head[18:20])[0]
            if head[:4] != b"\x7fELF" or code != MACHINES[machine]:
                found.append(f"got machine {code} in {name}, expected {MACHINES[machine]}")
    tag = f"cp39-abi3-manylinux2014_{machine}.whl"
    if not re.fullmatch(rf"clgraft-\d+\.\d+\.\d+\S*?-{re.escape(tag)}", wheel.name):
        found.append(f"got the name {wheel.name}, expected clgraft-VERSION-{tag}")
    return found


def main(folder: Path) -> int:
    """Check one wheel for each machine."""
    wheels = sorted(folder.glob("clgraft-*.whl"))
    status = 0 if len(wheels) == len(MACHINES) else 1
    for machine in MACHINES:
        wheel = next((path for path in wheels if path.stem.endswith(machine)), None)
        wrong = faults(wheel, machine) if wheel else ["got no wheel"]
        print(f"{wheel.name if wheel else machine}: {'; '.join(wrong) or 'complete'}")
        status = 1 if wrong else status
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
