"""What pyproject.toml cannot say: the list of packages, and the C runtime with libclgraft.so for C and C++ callers."""

import importlib.util
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext


class BuildWithLibrary(build_ext):
    """Puts libclgraft.so beside the extension; a Python without a shared libpython goes without it."""

    def run(self):
        super().run()
        extension = next(item for item in self.extensions if item.name.endswith("._runtime"))
        folder = Path(self.get_ext_fullpath(extension.name)).parent
        spec = importlib.util.spec_from_file_location("clgraft_embed", Path("core/abi/embed.py"))
        embed = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(embed)
        try:
            print("built", embed.build(folder))
        except Exception as error:
            print(f"libclgraft.so was not built (the Python package works without it): {error}")


def packages():
    """Name every folder that holds Python or OpenCL C as the package that it becomes."""
    roots = ("core", "kernels", "mxnet_ops", "caffe_layers", "plugins")
    folders = {file.parent for root in roots for kind in ("*.py", "*.cl") for file in Path(root).rglob(kind)}
    return sorted("clgraft." + ".".join(folder.parts) for folder in folders)


setup(
    packages=packages(),
    cffi_modules=["core/abi/build.py:ffibuilder", "mxnet_ops/engine/calls/build.py:ffibuilder"],
    cmdclass={"build_ext": BuildWithLibrary},
)
