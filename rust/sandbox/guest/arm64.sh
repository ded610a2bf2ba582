#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0

# Runs VMs on an emulated arm64 host: pause to a snapshot, restore in every mode.

set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
target=aarch64-unknown-linux-gnu

usage() {
	cat <<EOF
Usage: $(basename "$0") [--mode MODE]... [--linux IMAGE]

Builds sandbox for arm64 (static), boots the project's kernel under QEMU and takes
a VM with two vCPUs through its life there: pause, restore by copy, mmap and on
demand, pause again. Fails unless every step succeeds and all of the kernel's
stage-2 tables are freed in the end.

  --mode MODE    vhe nvhe protected (default: all three; may be repeated)
  --linux IMAGE  boot this kernel in a VM too (guest/build.sh --arch arm64), run
                 the test of all devices with it, and clone it in each mode

Needs the arm64 kernel (scripts/kernel.sh), QEMU, and Rust's $target.

Example:
  $(basename "$0") --mode nvhe
  $(basename "$0") --mode vhe --linux ~/.cache/kvm_s2/build/sandbox-arm64/arch/arm64/boot/Image
EOF
}

fail() {
	echo "$(basename "$0"): $1" >&2
	exit "${2:-1}"
}

modes=()
linux=
while (($#)); do
	case $1 in
	--help | -h) usage; exit 0 ;;
	--mode)
		(($# > 1)) || fail "--mode needs a value: vhe nvhe protected" 2
		[[ $2 =~ ^(vhe|nvhe|protected)$ ]] || fail "unknown mode '$2'; valid: vhe nvhe protected" 2
		modes+=("$2")
		shift 2
		;;
	--linux)
		(($# > 1)) || fail "--linux needs a kernel image" 2
		[[ -f $2 ]] || fail "no kernel image at $2: run guest/build.sh --arch arm64" 2
		linux=$2
		shift 2
		;;
	*) fail "unknown word '$1'; valid: --mode --linux --help" 2 ;;
	esac
done
((${#modes[@]})) || modes=(vhe nvhe protected)

image=$("$root/scripts/kernel.sh" --print image)
[[ -f $image ]] || fail "no kernel at $image: run scripts/kernel.sh first"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS='-C target-feature=+crt-static -C strip=symbols'
cargo build --quiet --manifest-path "$root/Cargo.toml" -p sandbox --bin sandbox \
	--example guest_init --target "$target" ||
	fail "cannot build for $target: rustup target add $target, and the arm64 cross compiler"
meta=$(cargo metadata --format-version 1 --no-deps --manifest-path "$root/Cargo.toml")
directory=${meta#*\"target_directory\":\"}
directory=${directory%%\"*}

add=(--add "$directory/$target/debug/sandbox:bin/sandbox" --add "$here/linux.sh:linux.sh")
if [[ -n $linux ]]; then
	cargo test --quiet --no-run --manifest-path "$root/Cargo.toml" -p sandbox --test it \
		--target "$target" --message-format json-render-diagnostics >"$work/built" ||
		fail "the tests do not build for $target"
	it=$(sed -n 's/.*"name":"it".*"executable":"\([^"]*\)".*/\1/p' "$work/built")
	init=$directory/$target/debug/examples/guest_init
	add+=(--add "$it:bin/it" --add "$init:bin/examples/guest_init")
	mkdir -p "$work/init/dev"
	cp "$init" "$work/init/init"
	(cd "$work/init" && find . | cpio --quiet -o -H newc) >"$work/initramfs"
	add+=(--add "$linux:guest/Image" --add "$work/initramfs:guest/initramfs")
fi
"$root/scripts/initramfs.sh" --run "$here/life.sh" --no-selftests --out "$work/initramfs.cpio" \
	"${add[@]}" >/dev/null

for mode in "${modes[@]}"; do
	echo "== $mode"
	"$root/scripts/qemu.sh" --mode "$mode" --image "$image" --initrd "$work/initramfs.cpio" \
		--no-icount --quiet --log "$work/console" || fail "$mode: the VM did not get through its life"
done
