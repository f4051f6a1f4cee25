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
tree=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)
shift
python=${PYTHON:-python3}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
# Caffe, the headers that C++ layers are compiled with, and what programs are linked with in their tests
packages="python3-caffe caffe gcc libc6-dev python3-dev libgomp1 python3-matplotlib python3-skimage python3-sklearn
    libcaffe-dev g++ cmake make pkg-config libboost-dev libgoogle-glog-dev libgflags-dev libprotobuf-dev libblas-dev"
[ -e "$dir/opt/packages" ] || debootstrap --variant=minbase bullseye "$dir" "$mirror"
if [ "$(cat "$dir/opt/packages" 2>/dev/null)" != "$packages" ]; then
    : >"$dir/opt/packages"
    # shellcheck disable=SC2086  # one word for each package
    DEBIAN_FRONTEND=noninteractive chroot "$dir" apt-get install -y --no-install-recommends $packages
    chroot "$dir" apt-get clean
    echo "$packages" >"$dir/opt/packages"
fi

if [ ! -e "$dir/opt/wheels/complete" ]; then
    # Download outside of the folder, where pip has certificates and mirrors. With --no-deps pip ignores the Python that
    # a release requires, so the limits name the last releases for 3.9. NumPy and protobuf are Debian's, because its
    # Caffe was built with them.
    platforms=()
    for tag in manylinux_2_31 manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014 manylinux_2_5 manylinux1; do
        platforms+=(--platform "${tag}_x86_64")
    done
    rm -rf "$dir/opt/wheels"
    "$python" -m pip download --quiet --dest "$dir/opt/wheels" --python-version 3.9 \
        --implementation cp --abi cp39 --abi abi3 --abi none "${platforms[@]}" --only-binary=:all: --no-deps \
        'pyopencl<2025.2' 'pytools<2025' 'platformdirs<4.5' typing_extensions 'cffi<2.1' 'pycparser<2.24' \
        'pytest<9' 'iniconfig<2.2' 'packaging<27' 'pluggy<1.7' 'exceptiongroup<1.4' 'tomli<3' 'pygments<2.21' \
        'pytest-xdist<3.9' 'execnet<2.2' 'pytest-timeout<2.5' \
        'hypothesis<6.142' 'attrs<27' 'sortedcontainers<3' 'setuptools<81' 'wheel<0.46' 'pip<26' \
        'rich<15' 'markdown-it-py<4' 'mdurl<1' 'shtab<2' 'siphash24<2' \
        intel-opencl-rt intel-cmplr-lib-rt intel-cmplr-lic-rt 'tbb<2024' tcmlib umf
    chroot "$dir" python3 -m venv --without-pip --system-site-packages --clear /opt/venv
    chroot "$dir" sh -c \
        'cd /opt/wheels; /opt/venv/bin/python3 "$(echo pip-*.whl)/pip" install --quiet --no-index --no-deps ./*.whl'
    touch "$dir/opt/wheels/complete"
fi

# Copied and built only after a file has changed. The note is removed first: it may be linked to another folder's.
exclude=(--exclude=./.git --exclude='./.venv*' --exclude='./.bullseye*' --exclude='./.trixie*' --exclude='./.*_cache'
    --exclude=./.hypothesis --exclude=./build --exclude=./dist --exclude='./*.egg-info' --exclude='*.so'
    --exclude='*.o' --exclude='__pycache__')
copied=$(tar -C "$tree" "${exclude[@]}" --sort=name --owner=0 --group=0 --mtime=@0 -cf - . | sha256sum)
if [ "$(cat "$dir/opt/copied" 2>/dev/null)" != "$copied" ]; then
    rm -rf "$dir/opt/copied" "$dir/clgraft"
    mkdir "$dir/clgraft"
    tar -C "$tree" "${exclude[@]}" -cf - . | tar -C "$dir/clgraft" -xf -
    chroot "$dir" /opt/venv/bin/pip install --quiet --no-index --no-deps --no-build-isolation \
        --root-user-action ignore --editable /clgraft
    echo "$copied" >"$dir/opt/copied"
fi

if [ $# -gt 0 ]; then
    # Results go to the tree's own build folder, and programs that one of the machine's Pythons has compiled serve here, too.
    cache=${CLGRAFT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/clgraft}
    for kept in programs pocl; do mkdir -p "$cache/$kept" "$dir/root/.cache/clgraft/$kept"; done
    mkdir -p "$tree/build" "$dir/clgraft/build"
    # The mounts belong to this command and disappear when it ends.
    exec unshare --mount -- bash -c '
        dir=$1 tree=$2 cache=$3; shift 3
        mount -t proc proc "$dir/proc"
        mount --rbind /dev "$dir/dev"
        mount --rbind /sys "$dir/sys"
        mount --bind "$tree/build" "$dir/clgraft/build"
        for kept in programs pocl; do mount --bind "$cache/$kept" "$dir/root/.cache/clgraft/$kept"; done
        exec chroot "$dir" /usr/bin/env -C /clgraft PATH=/opt/venv/bin:/usr/bin:/bin VIRTUAL_ENV=/opt/venv HOME=/root \
            CLGRAFT_DEVICE="${CLGRAFT_DEVICE:-}" "$@"' bash "$dir" "$tree" "$cache" "$@"
fi
