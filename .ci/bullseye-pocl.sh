#!/bin/bash
# Put Debian bullseye's Caffe together with a PoCL that knows today's processors.
#
#   .ci/bullseye-pocl.sh DIR NEW       make the folder NEW of DIR, which .ci/bullseye.sh has made; then use that with NEW
#
# Bullseye's own PoCL is 1.6, which refuses processors that are younger than its LLVM. Bookworm's comes with bookworm's C
# library, with which bullseye's programs run as they are. Needs root and a Debian mirror. Files are links to those of
# DIR, which packages replace and never write into.
set -euo pipefail
from=$1 to=$2 mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
[ -e "$to/opt/pocl" ] && exit
rm -rf "$to"
cp --archive --link "$from" "$to"
echo "deb $mirror bookworm main" >"$to/etc/apt/sources.list.d/bookworm.list"
printf 'Package: *\nPin: release n=bookworm\nPin-Priority: 100\n' >"$to/etc/apt/preferences.d/bookworm"
chroot "$to" apt-get update -qq
DEBIAN_FRONTEND=noninteractive chroot "$to" apt-get install -y -qq --no-install-recommends -t bookworm pocl-opencl-icd
chroot "$to" apt-get clean
touch "$to/opt/pocl"
