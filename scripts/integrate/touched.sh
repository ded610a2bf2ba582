# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The part of a kernel tree that integration changes. Needs lib.sh.

# edits_of KSRC - the file of edits for the tree's series.
edits_of() {
	local series
	series=$(sed -n 's/^VERSION = //p;s/^PATCHLEVEL = //p' "$1/Makefile" | paste -sd.)
	printf '%s\n' "$ROOT/scripts/integrate/$series.edits"
}

# copy_touched KSRC DIR - the top Makefile and each file that an edit names, as
# they were before any integration.
copy_touched() {
	local file
	mkdir -p "$2/arch/arm64/kvm"
	{
		echo Makefile
		sed -n '/^without/d; s/^[a-z]*~\([^~]*\)~.*/\1/p' "$(edits_of "$1")"
	} | sort -u | while read -r file; do
		mkdir -p "$2/$(dirname "$file")"
		cp "$1/$file" "$2/$file"
	done
	[[ ! -f $1/.kvm_s2.edits ]] || cp "$1/.kvm_s2.edits" "$2/"
	"$ROOT/scripts/integrate.sh" --revert "$2"
}
