#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0

# Runs a VM on an emulated arm64 host: pause to a snapshot, restore, pause again.

set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
target=aarch64-unknown-linux-gnu

usage() {
	cat <<EOF
Usage: $(basename "$0") [--mode MODE]...

Builds sandbox for arm64 (static), boots the project's kernel under QEMU and takes
a VM with two vCPUs through its life there. Fails unless every step succeeds and
all of the kernel's stage-2 tables are freed in the end.

  --mode MODE   vhe nvhe protected (default: all three; may be repeated)

Needs the arm64 kernel (scripts/kernel.sh), QEMU, and Rust's $target.

Example:
  $(basename "$0") --mode nvhe
EOF
}

fail() {
	echo "$(basename "$0"): $1" >&2
	exit "${2:-1}"
}

modes=()
while (($#)); do
	case $1 in
	--help | -h) usage; exit 0 ;;
	--mode)
		(($# > 1)) || fail "--mode needs a value: vhe nvhe protected" 2
		[[ $2 =~ ^(vhe|nvhe|protected)$ ]] || fail "unknown mode '$2'; valid: vhe nvhe protected" 2
		modes+=("$2")
		shift 2
		;;
	*) fail "unknown word '$1'; valid: --mode --help" 2 ;;
	esac
done
((${#modes[@]})) || modes=(vhe nvhe protected)

image=$("$root/scripts/kernel.sh" --print image)
[[ -f $image ]] || fail "no kernel at $image: run scripts/kernel.sh first"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS='-C target-feature=+crt-static -C strip=symbols'
cargo build --quiet --manifest-path "$root/Cargo.toml" -p sandbox --bin sandbox --target "$target" ||
	fail "cannot build for $target: rustup target add $target, and the arm64 cross compiler"
meta=$(cargo metadata --format-version 1 --no-deps --manifest-path "$root/Cargo.toml")
directory=${meta#*\"target_directory\":\"}
directory=${directory%%\"*}

cat >"$work/run.sh" <<'EOF'
set -eu
mkdir -p /tmp
cd /tmp
api="--api-socket /tmp/api"
sandbox run --keep $api --memory 32M --cpus 2 --touch 8M --count --console-file console &
for _ in $(seq 60); do
	grep -q T console 2>/dev/null && break
	sleep 1
done
grep -q T console
sandbox pause $api --snapshot snapshot
sandbox restore $api --snapshot snapshot --resume
sandbox pause $api --snapshot snapshot --release before-reply
sandbox counters $api --json | grep '"released":1,"inline":1,"failed":0'
sandbox shutdown $api
wait
# The kernel folds its per-CPU counts every second or so.
for _ in 1 2 3 4 5; do
	grep -q '^SecPageTables: *0 kB' /proc/meminfo && exit 0
	sleep 1
done
grep SecPageTables /proc/meminfo
exit 1
EOF

"$root/scripts/initramfs.sh" --run "$work/run.sh" --no-selftests --out "$work/initramfs.cpio" \
	--add "$directory/$target/debug/sandbox:bin/sandbox" >/dev/null

for mode in "${modes[@]}"; do
	echo "== $mode"
	"$root/scripts/qemu.sh" --mode "$mode" --image "$image" --initrd "$work/initramfs.cpio" \
		--no-icount --quiet --log "$work/console" || fail "$mode: the VM did not get through its life"
done
