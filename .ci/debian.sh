# What .ci/bullseye.sh and .ci/trixie.sh share, which source this with the folder of the system as the only argument: a
# Debian of another release in that folder, wheels from PyPI, a copy of this tree at /clgraft, and commands inside.
# Needs root, debootstrap, a Debian mirror (DEBIAN_MIRROR), PyPI, and a pip outside of the folder (PYTHON).

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)

# install_packages RELEASE PACKAGES: from the mirror, unless they are there. Packages compile no Python, most of which
# nobody imports, and a folder that can be made again need not survive a loss of power.
install_packages() {
    local mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
    [ -e "$dir/opt/packages" ] || debootstrap --variant=minbase "$1" "$dir" "$mirror"
    [ "$(cat "$dir/opt/packages" 2>/dev/null)" != "$2" ] || return 0
    : >"$dir/opt/packages"
    echo force-unsafe-io >"$dir/etc/dpkg/dpkg.cfg.d/unsafe-io"
    [ -L "$dir/usr/bin/py3compile" ] || chroot "$dir" dpkg-divert --quiet --local --rename --add /usr/bin/py3compile
    ln -sf /bin/true "$dir/usr/bin/py3compile"
    # shellcheck disable=SC2086  # one word for each package
    DEBIAN_FRONTEND=noninteractive chroot "$dir" apt-get install -y --no-install-recommends $2
    chroot "$dir" apt-get clean
    echo "$2" >"$dir/opt/packages"
}

# install_wheels PYTHON GLIBC REQUIREMENTS...: from PyPI, of which none brings another one: for Python 3.PYTHON and C
# libraries up to 2.GLIBC. They are downloaded outside of the folder, where pip has certificates and mirrors; with
# --no-deps pip ignores the Python that a release requires, and markers would be those of the Python outside.
install_wheels() {
    [ ! -e "$dir/opt/wheels/complete" ] || return 0
    local version=$1 glibc=$2 minor platforms=()
    shift 2
    for minor in 40 34 31 28 27 26 24 17 5; do
        [ "$minor" -gt "$glibc" ] || platforms+=(--platform "manylinux_2_${minor}_x86_64")
    done
    platforms+=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
    rm -rf "$dir/opt/wheels"
    "${PYTHON:-python3}" -m pip download --quiet --dest "$dir/opt/wheels" --python-version "3.$version" \
        --implementation cp --abi "cp3$version" --abi abi3 --abi none "${platforms[@]}" --only-binary=:all: \
        --no-deps "$@"
    chroot "$dir" python3 -m venv --without-pip --system-site-packages --clear /opt/venv
    chroot "$dir" sh -c \
        'cd /opt/wheels; /opt/venv/bin/python3 "$(echo pip-*.whl)/pip" install --quiet --no-index --no-deps ./*.whl'
    touch "$dir/opt/wheels/complete"
}

# pack_tree OPTIONS...: write the tree's archive. Folders may change at that time, because other programs put bytecode
# into them, which is left out: of that tar tells by status 1.
pack_tree() {
    local exclude=(--exclude=./.git --exclude='./.venv*' --exclude='./.bullseye*' --exclude='./.trixie*'
        --exclude='./.*_cache' --exclude=./.hypothesis --exclude=./build --exclude=./dist --exclude='./*.egg-info'
        --exclude='*.so' --exclude='*.o' --exclude='__pycache__')
    tar -C "$tree" "${exclude[@]}" "$@" --warning=no-file-changed -cf - . || [ $? = 1 ]
}

# copy_tree: copy and build clgraft, only after a file has changed
copy_tree() {
    local copied
    copied=$(pack_tree --sort=name --owner=0 --group=0 --mtime=@0 | sha256sum)
    [ "$(cat "$dir/opt/copied" 2>/dev/null)" != "$copied" ] || return 0
    rm -rf "$dir/opt/copied" "$dir/clgraft" # the note first: it may be linked to another folder's
    mkdir "$dir/clgraft"
    pack_tree | tar -C "$dir/clgraft" -xf -
    chroot "$dir" /opt/venv/bin/pip install --quiet --no-index --no-deps --no-build-isolation \
        --root-user-action ignore --editable /clgraft
    echo "$copied" >"$dir/opt/copied"
}

# run_inside CACHES COMMAND...: run a command in the copy, if there is one. Results go to the tree's own build folder,
# and compiled programs of the machine's Pythons serve there, too: those of the CACHES that are named.
run_inside() {
    local caches=$1 cache=${CLGRAFT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/clgraft} name
    shift
    [ $# -gt 0 ] || return 0
    for name in $caches; do mkdir -p "$cache/$name" "$dir/root/.cache/clgraft/$name"; done
    mkdir -p "$tree/build" "$dir/clgraft/build"
    # The mounts belong to this command and disappear when it ends.
    exec unshare --mount -- bash -c '
        dir=$1 tree=$2 cache=$3 caches=$4; shift 4
        mount -t proc proc "$dir/proc"
        mount --rbind /dev "$dir/dev"
        mount --rbind /sys "$dir/sys"
        mount --bind "$tree/build" "$dir/clgraft/build"
        for name in $caches; do mount --bind "$cache/$name" "$dir/root/.cache/clgraft/$name"; done
        exec chroot "$dir" /usr/bin/env -C /clgraft PATH=/opt/venv/bin:/usr/bin:/bin VIRTUAL_ENV=/opt/venv HOME=/root \
            CLGRAFT_DEVICE="${CLGRAFT_DEVICE:-}" "$@"' bash "$dir" "$tree" "$cache" "$caches" "$@"
}
