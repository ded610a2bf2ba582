#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Integration into a kernel tree: twice is once, revert undoes it, and a tree that
# does not match is named and left alone. Works on copies of the files it touches.

set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/integrate/touched.sh
. "$ROOT/scripts/integrate/touched.sh"

usage() {
	cat <<EOF_USAGE
Usage: scripts/test-integrate.sh KSRC

KSRC is a kernel tree, integrated or not; it is read only.

Example:
  scripts/test-integrate.sh "\$(scripts/kernel.sh --print src)"
EOF_USAGE
}

case ${1:-} in
-h | --help) usage; exit ;;
'' | -*) misuse "which kernel tree?" ;;
esac
ksrc=$1
edits=$(edits_of "$ksrc")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The line that the series' destroy is hung on.
call=$(awk -F'~' '$1 == "swap" && $2 ~ /mmu.c$/ { print $3 }' "$edits")

integrate() { "$ROOT/scripts/integrate.sh" "$@"; }
expect_same() { diff -r "$1" "$2" >&2 || die "$3"; }

copy_touched "$ksrc" "$work/plain"
cp -r "$work/plain" "$work/once"
integrate "$work/once"
cp -r "$work/once" "$work/twice"
integrate "$work/twice"
expect_same "$work/once" "$work/twice" "integrating twice changed something"
integrate --revert "$work/twice"
find "$work/twice" -type d -empty -delete
find "$work/plain" -type d -empty -delete
expect_same "$work/plain" "$work/twice" "reverting left something behind"

# What an earlier version did is undone first.
cp -r "$work/once" "$work/earlier"
sed -i 's/kvm_s2_destroy(/kvm_s2_former(/' "$work/earlier/arch/arm64/kvm/mmu.c" "$work/earlier/.kvm_s2.edits"
integrate "$work/earlier"
expect_same "$work/once" "$work/earlier" "what an earlier version did is still there"

# A line that an edit stands on is gone.
sed -i "s/$call/${call/pgt/gone}/" "$work/plain/arch/arm64/kvm/mmu.c"
cp -r "$work/plain" "$work/other"
if message=$(integrate "$work/other" 2>&1); then die "a tree that does not match was taken"; fi
[[ $message == *arch/arm64/kvm/mmu.c*"$call"* ]] ||
	die "file and anchor are not named: $message"
expect_same "$work/plain" "$work/other" "a tree that does not match was changed"
say "ok"
