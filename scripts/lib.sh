# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# What every script here shares: places, versions, messages. Sourced, never run.
# shellcheck disable=SC2034  # used by those who source this

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
HOME=${HOME:-~}
CACHE=${KVM_S2_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kvm_s2}
TOOLS=$CACHE/tools
ARM64=$CACHE/arm64
OUT=$CACHE/out

KERNELS=(7.3 6.12)      # series; the first one is the default
INTEGRATED=(bench debug calls 16k 64k dynamic rt dynamic-gcc rt-gcc)
CONFIGS=("${INTEGRATED[@]}" vanilla)
MODES=(vhe nvhe protected)

LLVM_VERSION=19
BINDGEN_VERSION=0.73.2
RUST_FLOOR=1.85         # what the kernel asks for
ARM64_TARGET=aarch64-unknown-linux-gnu
BINDGEN=$TOOLS/bin/bindgen
# A rustup toolchain first in PATH lacks the library sources the kernel build
# needs, so the distribution's compiler is always named in full.
RUSTC=/usr/bin/rustc
SYSROOT=$TOOLS/sysroot  # host and arm64 std side by side, for RUSTC

PROGRAM=$(basename "$0")

say()  { printf '%s: %s\n' "$PROGRAM" "$*" >&2; }
die()  { say "$@"; exit 1; }
misuse() { say "$@"; say "try '$PROGRAM --help'"; exit 2; }

# one_of WHAT WORD VALID... - ends with the list of valid words unless WORD is one.
one_of() {
	local what=$1 word=$2 valid
	shift 2
	for valid; do [[ $word == "$valid" ]] && return; done
	misuse "unknown $what '$word'; valid: $*"
}

# value_of OPTION REST... - the value that follows OPTION, or ends.
value_of() {
	[[ $# -ge 2 && -n $2 ]] || misuse "$1 needs a value"
	printf '%s\n' "$2"
}

# version_ge A B - is version A at least B?
version_ge() { [[ $(printf '%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

# Seconds as m:ss.
clock() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# need_space GIB - ends unless the cache's file system has that much left.
need_space() {
	local left
	if ! mkdir -p "$CACHE" || [[ ! -w $CACHE ]]; then
		die "cannot write to $CACHE; KVM_S2_CACHE moves it"
	fi
	left=$(($(df --output=avail -k "$CACHE" | tail -n 1) >> 20))
	((left >= $1)) || die "$CACHE: $left GiB free, $1 GiB needed;" \
		"make room or point KVM_S2_CACHE elsewhere"
}

# A cargo that can build this workspace: the one in PATH, else Debian's.
find_cargo() {
	local cargo version
	for cargo in cargo /usr/bin/cargo; do
		version=$("$cargo" --version 2>/dev/null | cut -d' ' -f2) || continue
		if [[ -n $version ]] && version_ge "$version" "$RUST_FLOOR"; then
			printf '%s\n' "$cargo"
			return
		fi
	done
	return 1
}

# arm64_cargo ARGS... - cargo for static arm64 programs.
arm64_cargo() {
	local cargo
	cargo=$(find_cargo) || die "no cargo >= $RUST_FLOOR; run scripts/setup.sh"
	# Flags meant for the host would reach the cross compiler.
	env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS RUSTC="$RUSTC" \
		CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$CACHE/target}" \
		CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
		CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="--sysroot=$SYSROOT -Ctarget-feature=+crt-static" \
		"$cargo" "$@" --target "$ARM64_TARGET"
}

# kbuild SRC BUILD ARGS... - make in the kernel tree SRC with its output in BUILD.
# Nothing from the caller may reach it but what is named here: neither a rustup
# toolchain, nor flags, nor the jobserver of an outer make.
kbuild() {
	local src=$1 build=$2
	shift 2
	env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u RUSTFLAGS -u CFLAGS -u KBUILD_OUTPUT \
		PATH=/usr/sbin:/usr/bin:/sbin:/bin LIBCLANG_PATH="/usr/lib/llvm-$LLVM_VERSION/lib" \
		KBUILD_BUILD_USER=kvm_s2 KBUILD_BUILD_HOST=kvm_s2 \
		make -C "$src" O="$build" ARCH=arm64 LLVM="-$LLVM_VERSION" RUSTC="$RUSTC" \
		RUSTDOC=/usr/bin/rustdoc BINDGEN="$BINDGEN" "$@" < /dev/null
}
