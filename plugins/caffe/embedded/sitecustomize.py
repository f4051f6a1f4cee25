"""Makes clgraft importable in the Python that the caffe binary embeds; Python runs this file when it starts.

PYTHONPATH alone cannot do that: Python reads `.pth` files, which an editable install consists of, only in its own
folders of packages. Nothing of clgraft is imported here.
"""

import os
import site
import sys


def add_packages() -> None:
    """Append the folders of packages that `clgraft caffe` runs with."""
    version = ".".join(map(str, sys.version_info[:2]))
    expected = os.environ.get("CLGRAFT_CAFFE_PYTHON", "")
    if expected and version != expected:
        print(
            f"clgraft: got a caffe that embeds Python {version}, expected {expected}, which clgraft is installed for: "
            f"install clgraft for Python {version} and run its clgraft caffe",
            file=sys.stderr,
        )
        return
    for folder in os.environ.get("CLGRAFT_CAFFE_SITES", "").split(os.pathsep):
        if folder and folder not in sys.path:
            site.addsitedir(folder)


def run_next() -> None:
    """Run the sitecustomize that this one hides."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]
    this = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if this is not None:
            sys.modules["sitecustomize"] = this


run_next()
add_packages()
