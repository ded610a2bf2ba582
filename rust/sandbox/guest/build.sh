#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0

# Builds the small kernel that sandbox guests boot.

set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
cache=${KVM_S2_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kvm_s2}

usage() {
	cat <<EOF
Usage: $(basename "$0") [--arch ARCH] [--source DIR] [--out DIR] [--jobs N] [--llvm SUFFIX]

Builds a kernel image from an unpacked kernel source tree, which stays untouched.

  --arch ARCH    x86_64 or arm64 (default: x86_64)
  --source DIR   kernel source (default: what scripts/kernel.sh builds from, fetched
                 if need be)
  --out DIR      build directory (default: $cache/build/sandbox-ARCH)
  --jobs N       parallel jobs (default: number of CPUs)
  --llvm SUFFIX  LLVM version suffix (default: -19)

Prints the path of the image on its last line.

Examples:
  $(basename "$0")
  $(basename "$0") --arch arm64
  $(basename "$0") --source ~/linux-7.3 --out /tmp/guest --jobs 2
EOF
}

fail() {
	echo "$(basename "$0"): $1" >&2
	exit "${2:-1}"
}

arch=x86_64
source=
out=
jobs=$(nproc)
llvm=-19
while (($#)); do
	case $1 in
	--help | -h) usage; exit 0 ;;
	--arch | --source | --out | --jobs | --llvm)
		(($# > 1)) || fail "$1 needs a value; see --help" 2
		declare "${1#--}=$2"
		shift 2
		;;
	*) fail "unknown word '$1'; valid: --arch --source --out --jobs --llvm --help" 2 ;;
	esac
done

case $arch in
x86_64) target=bzImage image=arch/x86/boot/bzImage ;;
arm64) target=Image image=arch/arm64/boot/Image ;;
*) fail "unknown architecture '$arch'; valid: x86_64 arm64" 2 ;;
esac
out=${out:-$cache/build/sandbox-$arch}
fragment=$here/$arch.config

if [[ -z $source ]]; then
	[[ -x $root/scripts/kernel.sh ]] || fail "no source tree: pass --source DIR"
	source=$("$root/scripts/kernel.sh" --print src)
	"$root/scripts/setup.sh" --kernel "${source##*/linux-}" >&2
fi
[[ -f $source/Kconfig ]] || fail "$source is not a kernel source tree: pass --source DIR"

mkdir -p "$out"
kmake() {
	make -s -C "$source" O="$out" ARCH="$arch" LLVM="$llvm" -j"$jobs" "$@"
}

configure() {
	kmake allnoconfig
	"$source/scripts/kconfig/merge_config.sh" -m -O "$out" "$out/.config" "$fragment" >/dev/null
	kmake olddefconfig
	# An option that Kconfig dropped is found here rather than in a guest that hangs.
	while IFS= read -r line; do
		grep -qxF "$line" "$out/.config" || fail "Kconfig did not take $line; check its dependencies"
	done < <(grep '^CONFIG_' "$fragment")
	cp "$fragment" "$out/fragment"
}

# Configuring again would only cost time, and a newer .config rebuilds everything.
cmp -s "$fragment" "$out/fragment" || configure
kmake "$target"
echo "$out/$image"
