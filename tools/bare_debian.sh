#!/usr/bin/env bash
# A Debian with Python and nothing else, in which a wheel must install and run without a compiler. Needs root.
#
#   tools/bare_debian.sh make FOLDER   makes one by debootstrap
#   tools/bare_debian.sh try FOLDER    runs `tools/wheels.py try` there, with the wheels of dist/
#
# The package index is asked as this machine asks it: pip's settings, certificates and name servers are lent for
# the time of the run. Mounts are made in a namespace of their own, so none is left behind.
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
what=$1 folder=$(realpath -m "$2")

lend() { # PATH: shows this file or folder, read-only, at the same place inside.
  [ -e "$1" ] || return 0
  if [ -d "$1" ]; then mkdir -p "$folder$1"; else mkdir -p "$(dirname "$folder$1")" && touch "$folder$1"; fi
  mount --bind -o ro "$(realpath "$1")" "$folder$1"
}

case $what in
make)
  rm -rf "$folder"
  mkdir -p "$folder"
  debootstrap --variant=minbase --include=python3-venv bookworm "$folder" >"$folder.log" ||
    { tail "$folder.log" >&2; exit 1; }
  ;;
try)
  # This script begins again in namespaces of its own.
  [ -n "${IN_NAMESPACE:-}" ] || IN_NAMESPACE=1 exec unshare --mount --pid --fork "$0" "$@"
  if chroot "$folder" sh -c 'command -v cc gcc cargo rustc'; then
    echo "bare_debian: $folder has a compiler, so it shows nothing" >&2
    exit 1
  fi
  mount -t proc proc "$folder/proc"
  mount -t tmpfs tmpfs "$folder/tmp"
  for path in /etc/resolv.conf /etc/hosts /etc/ssl/certs /etc/pip.conf "$HOME/.config/pip" \
    "${PIP_CONFIG_FILE:-}" "${PIP_FIND_LINKS:-}"; do
    lend "$path"
  done
  settings=(PATH=/usr/sbin:/usr/bin:/sbin:/bin "HOME=$HOME" LC_ALL=C.UTF-8)
  for name in $(compgen -e); do
    case $name in
    PIP_* | *_proxy | *_PROXY | SSL_CERT_* | REQUESTS_CA_BUNDLE) settings+=("$name=${!name}") ;;
    esac
  done
  mkdir -p "$folder/gradtide"
  mount --bind -o ro "$repository" "$folder/gradtide"
  chroot "$folder" env -i "${settings[@]}" python3 /gradtide/tools/wheels.py try
  ;;
*)
  echo "bare_debian: make FOLDER, or try FOLDER" >&2
  exit 2
  ;;
esac
