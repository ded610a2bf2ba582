#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# The patches for review, on a tree that never saw this project.

set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/integrate/touched.sh
. "$ROOT/scripts/integrate/touched.sh"

usage() {
	cat <<EOF_USAGE
Usage: scripts/test-patches.sh [options]

Makes the series, lets git am apply it to pristine files, and compares the outcome
with that of scripts/integrate.sh: they must be the same to the byte.

  --kernel V   ${KERNELS[*]} (default: one after the other)
  --build      also build arch/arm64/kvm after each patch, with the component's
               options off and on; a kernel build and a while longer, 4 GB of disk
  --help       this text

Example:
  scripts/test-patches.sh --kernel 6.12 --build
EOF_USAGE
}

kernels=("${KERNELS[@]}")
build=0
while (($#)); do
	case $1 in
	--kernel) kernels=("$(value_of "$@")"); one_of kernel "${kernels[0]}" "${KERNELS[@]}"; shift ;;
	--build) build=1 ;;
	-h | --help) usage; exit ;;
	*) misuse "unknown option '$1'; valid: --kernel --build --help" ;;
	esac
	shift
done

git_am() {
	git -C "$1" -c user.name=kvm_s2 -c user.email=kvm_s2@localhost "${@:2}"
}

apply_series() {
	local series=$1 src=$2 tree=$work/$1
	copy_touched "$src" "$tree"
	cp -r "$tree" "$tree-integrated"
	"$ROOT/scripts/integrate.sh" "$tree-integrated"
	git_am "$tree" init -q
	git_am "$tree" add -A
	git_am "$tree" commit -qm "Linux $series"
	git_am "$tree" am -q "$work/patches/$series"/000[1-9]-*.patch
	diff -r --exclude=.git --exclude=.kvm_s2.edits "$tree" "$tree-integrated" >&2 ||
		die "Linux $series: the patches and the integration differ"
	say "Linux $series: git am gives what integration gives"
}

# built TREE off|on - builds what the patches touch, in one of two configurations.
# Who has the options off may have no Rust either.
built() {
	local dir=$CACHE/build/patches-$series-$2 log
	log=$dir/build.log
	mkdir -p "$dir"
	{
		cat "$ROOT/scripts/config/base.config"
		cat "$ROOT/scripts/config/$series.config" 2> /dev/null || true
		case $2 in
		off) echo CONFIG_RUST=n ;;
		on) cat "$ROOT"/scripts/config/component{,"-$series"}.config 2> /dev/null || true ;;
		esac
	} > "$dir/.fragment"
	{
		kbuild "$1" "$dir" -s KCONFIG_ALLCONFIG="$dir/.fragment" allnoconfig &&
			kbuild "$1" "$dir" -j"$(nproc)" KCFLAGS=-Werror arch/arm64/kvm/
	} > "$log" 2>&1 || { tail -n 20 "$log" >&2; return 1; }
}

build_each() {
	local series=$1 src=$2 tree=$CACHE/patches-$1 patch config
	need_space 6
	rm -rf "$tree"
	cp -r --reflink=auto "$src" "$tree"
	"$ROOT/scripts/integrate.sh" --revert "$tree"
	for patch in "$work/patches/$series"/000[1-9]-*.patch; do
		patch -s -p1 -d "$tree" < "$patch"
		for config in off on; do
			built "$tree" "$config" || die "$(basename "$patch") does not build with options $config"
		done
		say "$(clock $SECONDS) $(basename "$patch") builds, options off and on"
	done
	rm -rf "$tree" "$CACHE/build/patches-$series"-{off,on}
}

# Whose name is under them does not matter here.
git -C "$ROOT" var GIT_COMMITTER_IDENT > /dev/null 2>&1 ||
	export GIT_COMMITTER_NAME=kvm_s2 GIT_COMMITTER_EMAIL=kvm_s2@localhost
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for series in "${kernels[@]}"; do
	"$ROOT/scripts/patches.sh" --kernel "$series" --out "$work/patches"
	src=$("$ROOT/scripts/kernel.sh" --kernel "$series" --print src)
	apply_series "$series" "$src"
	((!build)) || build_each "$series" "$src"
done
