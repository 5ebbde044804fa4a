#!/bin/sh
# The Debian packages that the system tests use. Does nothing without root or apt; the tests then skip and say why.
set -eu
wanted="slurm-wlm munge gromacs"
for package in $wanted; do
    dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="${missing-} $package"
done
[ -n "${missing-}" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "not installing$missing: needs root and apt-get" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
# shellcheck disable=SC2086
apt-get install -q -y --no-install-recommends $missing
