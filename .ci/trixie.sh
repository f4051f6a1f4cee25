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
    sed -n '2,10p' "$0" | cut -c3-
    exit 2
fi
tree=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)
shift
python=${PYTHON:-python3}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
packages="python3-venv python3-dev gcc libc6-dev libgomp1 pocl-opencl-icd mesa-opencl-icd ocl-icd-libopencl1
    python3-torch"
[ -e "$dir/opt/packages" ] || debootstrap --variant=minbase trixie "$dir" "$mirror"
if [ "$(cat "$dir/opt/packages" 2>/dev/null)" != "$packages" ]; then
    : >"$dir/opt/packages"
    # shellcheck disable=SC2086  # one word for each package
    DEBIAN_FRONTEND=noninteractive chroot "$dir" apt-get install -y --no-install-recommends $packages
    chroot "$dir" apt-get clean
    # Mesa's driver is listed in a folder of its own, so that PoCL is the device unless that folder is named
    mkdir -p "$dir/opt/mesa"
    rm -f "$dir"/etc/OpenCL/vendors/{mesa,rusticl}.icd
    echo libRusticlOpenCL.so.1 >"$dir/opt/mesa/rusticl.icd"
    echo "$packages" >"$dir/opt/packages"
fi

if [ ! -e "$dir/opt/wheels/complete" ]; then
    # Download outside of the folder, where pip has certificates and mirrors. MXNet's wheel would not let pip choose
    # NumPy 2, and markers would be those of the Python outside, hence every package by name.
    platforms=()
    for tag in manylinux_2_40 manylinux_2_34 manylinux_2_31 manylinux_2_28 manylinux_2_27 manylinux_2_26 \
        manylinux_2_24 manylinux_2_17 manylinux2014 manylinux_2_5 manylinux1; do
        platforms+=(--platform "${tag}_x86_64")
    done
    rm -rf "$dir/opt/wheels"
    "$python" -m pip download --quiet --dest "$dir/opt/wheels" --python-version 3.13 \
        --implementation cp --abi cp313 --abi abi3 --abi none "${platforms[@]}" --only-binary=:all: --no-deps \
        'numpy>=2.4' 'mxnet==1.9.1' requests urllib3 idna charset-normalizer certifi \
        pyopencl pytools platformdirs typing_extensions siphash24 cffi pycparser 'protobuf<8' \
        rich markdown-it-py mdurl pygments shtab 'setuptools<81' wheel pip \
        onnx ml_dtypes onnxruntime flatbuffers packaging sympy mpmath pillow \
        pytest iniconfig pluggy pytest-xdist execnet pytest-timeout hypothesis attrs sortedcontainers \
        intel-opencl-rt intel-cmplr-lib-rt intel-cmplr-lic-rt 'tbb<2024' tcmlib umf
    chroot "$dir" python3 -m venv --without-pip --system-site-packages --clear /opt/venv
    chroot "$dir" sh -c \
        'cd /opt/wheels; /opt/venv/bin/python3 "$(echo pip-*.whl)/pip" install --quiet --no-index --no-deps ./*.whl'
    touch "$dir/opt/wheels/complete"
fi

rm -rf "$dir/clgraft"
mkdir "$dir/clgraft"
tar -C "$tree" --exclude=./.git --exclude='./.venv*' --exclude='./.bullseye*' --exclude='./.trixie*' \
    --exclude='./.*_cache' --exclude=./.hypothesis --exclude=./build --exclude=./dist --exclude='./*.egg-info' \
    --exclude='*.so' --exclude='*.o' --exclude='__pycache__' -cf - . |
    tar -C "$dir/clgraft" -xf -
chroot "$dir" /opt/venv/bin/pip install --quiet --no-index --no-deps --no-build-isolation \
    --root-user-action ignore --editable /clgraft

if [ $# -gt 0 ]; then
    # Results go to the tree's own build folder.
    mkdir -p "$tree/build" "$dir/clgraft/build"
    # The mounts belong to this command and disappear when it ends.
    exec unshare --mount -- bash -c '
        dir=$1 tree=$2; shift 2
        mount -t proc proc "$dir/proc"
        mount --rbind /dev "$dir/dev"
        mount --rbind /sys "$dir/sys"
        mount --bind "$tree/build" "$dir/clgraft/build"
        exec chroot "$dir" /usr/bin/env -C /clgraft PATH=/opt/venv/bin:/usr/bin:/bin VIRTUAL_ENV=/opt/venv HOME=/root \
            CLGRAFT_DEVICE="${CLGRAFT_DEVICE:-}" "$@"' bash "$dir" "$tree" "$@"
fi
