"""The options that a branch was built with are read from its library. Needs a compiler, but no Caffe."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from clgraft.caffe_layers.library import opencl_branch
from clgraft.core.errors import BuildError

SOURCE = """
namespace caffe {
struct OclDevice { virtual void Init(); };
struct ClFFTState { void setup(); };
template <typename A, typename B, typename C> struct LayerRegistry { static int &Registry(); };
template <typename A, typename B, typename C> int &LayerRegistry<A, B, C>::Registry() { static int one; return one; }
#ifdef USE_OPENCL
void OclDevice::Init() {}
#endif
#ifdef USE_FFT
void ClFFTState::setup() {}
#endif
#ifdef USE_SINGLE
template struct LayerRegistry<float, float, float>;
#endif
#ifdef USE_DOUBLE
template struct LayerRegistry<double, double, double>;
#endif
#ifdef USE_INT_QUANT_8
template struct LayerRegistry<unsigned char, unsigned char, unsigned char>;
#endif
}
"""


@pytest.fixture
def library(tmp_path):
    """Make a library with the symbols that options leave."""
    if not shutil.which("g++") or not shutil.which("nm"):
        pytest.skip("needs g++ and nm")

    def make(*options: str):
        target = tmp_path / "libcaffe.so"
        command = ["g++", "-x", "c++", "-", "-shared", "-fPIC", *(f"-D{name}" for name in options), "-o", str(target)]
        subprocess.run(command, input=SOURCE, text=True, check=True)
        return target

    return make


@pytest.mark.parametrize(
    "options", [["USE_OPENCL", "USE_SINGLE"], ["USE_OPENCL", "USE_SINGLE", "USE_DOUBLE", "USE_INT_QUANT_8", "USE_FFT"]]
)
def test_found(library, options):
    assert opencl_branch.definitions(library(*options)) == options


@pytest.mark.parametrize(
    "options, missing", [(["USE_SINGLE"], "without OpenCL"), (["USE_OPENCL", "USE_DOUBLE"], "without float32")]
)
def test_a_build_that_is_no_use_is_refused(library, options, missing):
    with pytest.raises(BuildError, match=missing):
        opencl_branch.definitions(library(*options))


def test_a_file_that_is_no_library_is_refused(tmp_path):
    file = tmp_path / "libcaffe.so"
    file.write_text("nothing")
    with pytest.raises(BuildError, match="expected a shared library"):
        opencl_branch.definitions(file)


def test_the_branch_is_told_by_a_header(tmp_path):
    assert not opencl_branch.is_branch([tmp_path])
    (tmp_path / "caffe" / "backend").mkdir(parents=True)
    (tmp_path / "caffe" / "backend" / "vptr.hpp").touch()
    assert opencl_branch.is_branch([tmp_path / "other", tmp_path])
