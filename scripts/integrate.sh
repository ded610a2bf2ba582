#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Lays the component over a kernel tree: files that are new, and a handful of
# edits listed in scripts/integrate/<series>.edits.

set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage() {
	cat <<EOF_USAGE
Usage: scripts/integrate.sh [--revert | --check] KSRC

Puts the stage-2 destroy into the kernel tree KSRC. Running it twice changes
nothing. A tree that does not look as expected is named with file and anchor,
and nothing in it is changed.

  --revert   takes it out again
  --check    says whether the tree can take it, changes nothing
  --list     the kernel series that are known
  --help     this text

Examples:
  scripts/integrate.sh ~/linux
  scripts/integrate.sh --revert ~/linux
EOF_USAGE
}

series_known() { basename -a -s .edits "$ROOT"/scripts/integrate/*.edits; }

action=apply
ksrc=
while (($#)); do
	case $1 in
	--revert) action=revert ;;
	--check) action=check ;;
	--list) series_known; exit ;;
	-h | --help) usage; exit ;;
	-*) misuse "unknown option '$1'; valid: --revert --check --list --help" ;;
	*) [[ -z $ksrc ]] || misuse "one kernel tree, not '$ksrc' and '$1'"; ksrc=$1 ;;
	esac
	shift
done
[[ -n $ksrc ]] || misuse "which kernel tree?"
[[ -f $ksrc/Makefile && -d $ksrc/arch/arm64/kvm ]] || die "$ksrc is not a kernel tree"

series=$(awk '$1 == "VERSION" { v = $3 } $1 == "PATCHLEVEL" { print v "." $3; exit }' "$ksrc/Makefile")
edits=$ROOT/scripts/integrate/$series.edits
[[ -f $edits ]] ||
	die "$ksrc is Linux $series; known are:" "$(series_known | tr '\n' ' ')"
# What was done to the tree, so that a later version of this project can undo it.
applied=$ksrc/.kvm_s2.edits

# Files of the project that this series does not take, as patterns for find.
without() { sed -n 's/^without~\(.*\)/-path \1 -prune -o/p' "$edits"; }

# Pairs of source and destination of all new files.
overlay() {
	local file
	cd "$ROOT"
	# shellcheck disable=SC2046  # paths without blanks
	find arch Documentation/virt $(without) -type f -print | while read -r file; do
		printf '%s\t%s\n' "$file" "$file"
	done
	# The crate, without what only cargo builds.
	find rust/kvm_s2 \( -name tests -o -name benches -o -name fuzz \) -prune -o \
		-name '*.rs' -print | while read -r file; do
		printf '%s\tarch/arm64/kvm/%s\n' "$file" "${file#rust/}"
	done
	printf 'Kconfig\tarch/arm64/kvm/kvm_s2/Kconfig\n'
}

# each_edit FUNCTION [FILE] - calls it with how, file, anchor, text, times.
each_edit() {
	local how file anchor text times
	while IFS='~' read -r how file anchor text times; do
		[[ $how == '#'* || $how == without || -z $how ]] && continue
		"$1" "$how" "$ksrc/$file" "$anchor" "$text" "${times:-1}"
	done < "${2:-$edits}"
}

lines_equal() { grep -cxF -e "$2" "$1" || true; }
places() { { grep -oF -e "$2" "$1" || true; } | wc -l; }

# Whether an edit is there already.
is_done() {
	case $1 in
	swap) (($(places "$2" "$4") == $5)) ;;
	*) (($(lines_equal "$2" "$4") >= 1)) ;;
	esac
}

check_edit() {
	local how=$1 file=$2 anchor=$3 times=$5 found
	[[ -f $file ]] || die "${file#"$ksrc/"}: no such file in this tree"
	is_done "$@" && return
	case $how in
	swap) found=$(places "$file" "$anchor") ;;
	end) found=$times ;;
	*) found=$(lines_equal "$file" "$anchor") ;;
	esac
	((found == times)) ||
		die "${file#"$ksrc/"}: '$anchor' found $found times, not $times;" \
			"nothing was changed"
}

# Text as a sed replacement, and as a pattern.
replacement() { printf '%s' "$1" | sed 's/[\\&|]/\\&/g'; }
pattern() { printf '%s' "$1" | sed 's/[][\\.*^$|]/\\&/g'; }

apply_edit() {
	local how=$1 file=$2 anchor=$3 text=$4
	is_done "$@" && return
	case $how in
	after) sed -i "s|^$(pattern "$anchor")\$|&\n$(replacement "$text")|" "$file" ;;
	before) sed -i "s|^$(pattern "$anchor")\$|$(replacement "$text")\n\n&|" "$file" ;;
	swap) sed -i "s|$(pattern "$anchor")|$(replacement "$text")|g" "$file" ;;
	end) printf '%s\n' "$text" >> "$file" ;;
	esac
}

revert_edit() {
	local how=$1 file=$2 anchor=$3 text=$4
	is_done "$@" || return 0
	case $how in
	before) sed -i "/^$(pattern "$text" | sed 's|/|\\/|g')\$/ { N; d }" "$file" ;;
	swap) sed -i "s|$(pattern "$text")|$(replacement "$anchor")|g" "$file" ;;
	*) sed -i "/^$(pattern "$text" | sed 's|/|\\/|g')\$/d" "$file" ;;
	esac
}

apply_overlay() {
	local from to
	while IFS=$'\t' read -r from to; do
		mkdir -p "$(dirname "$ksrc/$to")"
		cmp -s "$ROOT/$from" "$ksrc/$to" || cp "$ROOT/$from" "$ksrc/$to"
	done < <(overlay)
}

revert_overlay() {
	local to
	while IFS=$'\t' read -r _ to; do rm -f "$ksrc/$to"; done < <(overlay)
	find "$ksrc/arch/arm64/kvm/kvm_s2" -type d -empty -delete 2>/dev/null || true
}

take_back() {
	[[ ! -f $applied ]] || each_edit revert_edit "$applied"
	each_edit revert_edit
	rm -f "$applied"
}

apply() {
	if [[ -f $applied ]] && ! cmp -s "$applied" "$edits"; then take_back; fi
	each_edit check_edit
	apply_overlay
	each_edit apply_edit
	cmp -s "$edits" "$applied" || cp "$edits" "$applied"
}

case $action in
check) each_edit check_edit ;;
apply) apply ;;
revert) take_back; revert_overlay ;;
esac
