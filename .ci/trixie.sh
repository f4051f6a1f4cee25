#!/bin/bash
# Make a system of today in a folder: Debian 13 with Python 3.13, glibc 2.41, PoCL 6, Mesa's rusticl and PyTorch of
# Debian, and from PyPI NumPy 2, MXNet, ONNX and ONNX Runtime; clgraft is built there.
#
#   .ci/trixie.sh DIR                      make the folder (four minutes), or update clgraft in it
#   .ci/trixie.sh DIR python3 ...          do the same, then run a command inside, in the copy at /clgraft
#   OCL_ICD_VENDORS=/opt/mesa RUSTICL_ENABLE=llvmpipe .ci/trixie.sh DIR clgraft devices        with rusticl alone
#
# Needs root, debootstrap, a Debian mirror, PyPI, and a pip outside of the folder (PYTHON, default python3).
set -euo pipefail

if [ $# -lt 1 ]; then
    sed -n '2,9p' "$0" | cut -c3-
    exit 2
fi
# shellcheck source=.ci/debian.sh
. "$(dirname "$0")/debian.sh" "$1"
shift
packages="python3-venv python3-dev gcc libc6-dev libgomp1 pocl-opencl-icd mesa-opencl-icd ocl-icd-libopencl1
    python3-torch"
install_packages trixie "$packages"
# Mesa's driver is listed in a folder of its own, so that PoCL is the device unless that folder is named
mkdir -p "$dir/opt/mesa"
rm -f "$dir"/etc/OpenCL/vendors/{mesa,rusticl}.icd
echo libRusticlOpenCL.so.1 >"$dir/opt/mesa/rusticl.icd"
# MXNet's wheel would not let pip choose NumPy 2
install_wheels 13 40 \
    'numpy>=2.4' 'mxnet==1.9.1' requests urllib3 idna charset-normalizer certifi \
    pyopencl pytools platformdirs typing_extensions siphash24 cffi pycparser 'protobuf<8' \
    rich markdown-it-py mdurl pygments shtab 'setuptools<81' wheel pip \
    onnx ml_dtypes onnxruntime flatbuffers packaging sympy mpmath pillow \
    pytest iniconfig pluggy pytest-xdist execnet pytest-timeout hypothesis attrs sortedcontainers \
    intel-opencl-rt intel-cmplr-lib-rt intel-cmplr-lic-rt 'tbb<2024' tcmlib umf
copy_tree
run_inside "" "$@" # its PoCL is another one, whose programs serve nowhere else
