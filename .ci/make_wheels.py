"""Build clgraft's wheels, one for each machine: for every Python from 3.9 and glibc 2.17 or later (manylinux2014).

zig compiles for both machines on either of them, without a container. The Python that runs this needs the dependency
group `wheels` of pyproject.toml.

usage: make_wheels.py FOLDER [MACHINE ...]
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MACHINES = ("x86_64", "aarch64")
# what is built, or no part of the package: each wheel comes from clean sources
LEFT_OUT = (".*", "*.egg-info", "*.so", "__pycache__", "build", "dist", "demo-output", "docs", "tests")


def compiler(machine: str, scratch: Path) -> str:
    """Return the command that compiles for a machine with the headers of this Python."""
    command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu.2.17"]
    # Debian keeps pyconfig.h in a folder for each machine. Under the limited API they are alike.
    version = f"python{sysconfig.get_config_var('VERSION')}"
    own = Path("/usr/include", str(sysconfig.get_config_var("MULTIARCH")), version)
    other = scratch / "include" / f"{machine}-linux-gnu" / version
    if own.is_dir():
        other.parent.mkdir(parents=True)
        other.symlink_to(own)
        command.append(f"-I{scratch / 'include'}")
    return shlex.join(command)


def build(machine: str, folder: Path) -> None:
    """Build the wheel for one machine into a folder."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        shutil.copytree(ROOT, scratch / "source", ignore=shutil.ignore_patterns(*LEFT_OUT))
        cc = compiler(machine, scratch)
        # LDSHARED replaces this Python's own, which can name folders of this machine; -s leaves the symbols out
        environment = {**os.environ, "CC": cc, "LDSHARED": f"{cc} -shared -s"}
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--no-build-isolation", f"--config-settings=--build-option=--plat-name=manylinux2014_{machine}"]
        subprocess.run([*command, f"--wheel-dir={scratch}", "."], cwd=scratch / "source", env=environment, check=True)
        for wheel in scratch.glob("*.whl"):
            print(f"{shutil.copy(wheel, folder)}: {wheel.stat().st_size} bytes", flush=True)


def main(arguments: list[str]) -> int:
    """Build what the arguments say."""
    if not arguments or not set(arguments[1:]) <= set(MACHINES):
        print(__doc__, f"machines: {' '.join(MACHINES)}", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("clgraft-*.whl"):
        old.unlink()
    for machine in arguments[1:] or MACHINES:
        build(machine, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
