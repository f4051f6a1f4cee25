#!/bin/bash
# Put real BVLC Caffe into a folder: Debian bullseye's packages, and clgraft built for their Python 3.9.
#
#   .ci/bullseye.sh DIR                      make the folder (two minutes), or update clgraft in it
#   .ci/bullseye.sh DIR python3 ...          do the same, then run a command inside, in the copy at /clgraft
#   .ci/bullseye.sh DIR pytest tests/caffe_layers
#
# Needs root, debootstrap, a Debian mirror, PyPI, and a pip outside of the folder (PYTHON, default python3).
set -euo pipefail

if [ $# -lt 1 ]; then
    sed -n '2,8p' "$0" | cut -c3-
    exit 2
fi
# shellcheck source=.ci/debian.sh
. "$(dirname "$0")/debian.sh" "$1"
shift
# Caffe, the headers that C++ layers are compiled with, and what programs are linked with in their tests
packages="python3-caffe caffe gcc libc6-dev python3-dev libgomp1 python3-matplotlib python3-skimage python3-sklearn
    libcaffe-dev g++ cmake make pkg-config libboost-dev libgoogle-glog-dev libgflags-dev libprotobuf-dev libblas-dev"
install_packages bullseye "$packages"
# The limits name the last releases for Python 3.9. NumPy and protobuf are Debian's: its Caffe was built with them.
install_wheels 9 31 \
    'pyopencl<2025.2' 'pytools<2025' 'platformdirs<4.5' typing_extensions 'cffi<2.1' 'pycparser<2.24' \
    'pytest<9' 'iniconfig<2.2' 'packaging<27' 'pluggy<1.7' 'exceptiongroup<1.4' 'tomli<3' 'pygments<2.21' \
    'pytest-xdist<3.9' 'execnet<2.2' 'pytest-timeout<2.5' \
    'hypothesis<6.142' 'attrs<27' 'sortedcontainers<3' 'setuptools<81' 'wheel<0.46' 'pip<26' \
    'rich<15' 'markdown-it-py<4' 'mdurl<1' 'shtab<2' 'siphash24<2' \
    intel-opencl-rt intel-cmplr-lib-rt intel-cmplr-lic-rt 'tbb<2024' tcmlib umf
copy_tree
run_inside "programs pocl" "$@"
