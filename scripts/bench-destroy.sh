#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# The main job: what the end of a KVM guest costs, upstream against ours.

set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/bench/cases.sh
. "$ROOT/scripts/bench/cases.sh"
# shellcheck source=scripts/bench/machine.sh
. "$ROOT/scripts/bench/machine.sh"
# shellcheck source=scripts/bench/tree.sh
. "$ROOT/scripts/bench/tree.sh"

out='' # where results go, when that was said

usage() {
	cat <<EOF_USAGE
Usage: scripts/bench-destroy.sh [options]

Builds what is missing, boots an arm64 machine per mode under QEMU, destroys
guests with the kernel's own code (c) and with this project's (rust), prints one
table, and writes destroy.json and destroy.svg. Figures are instructions, which
repeat whatever else this machine does. Ends with 1 when a figure is past
scripts/bench/limits.toml or a case failed.

What to measure (default: everything)
  --kernel V     ${KERNELS[*]} (default ${KERNELS[0]})
  --mode M       ${MODES[*]}
  --impl I       c rust
  --case C       ${CASES[*]}
  --backing B    ${BACKINGS[*]}
  --order O      ${ORDERS[*]}
  --guest G      ${GUESTS[*]} none
  --size N       guest memory of the dense cases, such as 64M or 2G
  --ipa BITS     width of guest addresses, 32 to 52
  --mem SIZE     memory of the machine (default 8G); with less than half of it the
                 page allocator gives the tables of 128 GiB back to its free lists
                 at once, and each costs 130 more
  --quick        smaller tables; under 5 minutes once everything is built
  --list         show the cases that would be run, and end

What to do with it
  --metric F     figure in the table and the picture (default destroy_insns):
                 ${METRICS[*]:0:7}
                 ${METRICS[*]:7}
  --out DIR      where results go (default $OUT, or $OUT/V with --kernel V)
  --json FILE    where the JSON goes (default destroy.json in --out)
  --max N        no limits but this one, on --metric of all rows: exit 0 when no
                 row is past it, 1 when one is, 125 when that cannot be told

Where to measure
  --local        on this arm64 host, as root; --metric is then destroy_ns by default,
                 or close_ns without the component
  --tree DIR     the kernel in DIR as it is, with or without this project's
                 component, real guests only; --metric is then close_insns by default
  --help         this text

Examples:
  scripts/bench-destroy.sh
  scripts/bench-destroy.sh --quick --mode protected
  scripts/bench-destroy.sh --case dense-4k --backing kernel --size 4G --impl rust
  git bisect run /path/to/scripts/bench-destroy.sh --tree . --mode vhe --case 1m --max 500000
EOF_USAGE
}

kernel=${KERNELS[0]}
modes=("${MODES[@]}")
impls="rust c"
only_case='' only_backing='' only_order='' only_guest='' set_size='' set_ipa=''
quick=0 list=0 local=0 mem=8G
metric='' json='' max='' tree=''

parse() {
	local value
	while (($#)); do
		case $1 in
		--quick) quick=1; shift; continue ;;
		--list) list=1; shift; continue ;;
		--local) local=1; shift; continue ;;
		-h | --help) usage; exit ;;
		--kernel | --mode | --impl | --case | --backing | --order | --guest | --size | --ipa | --mem | \
		--metric | --out | --json | --max | --tree)
			value=$(value_of "$@")
			take "$1" "$value"
			shift 2 ;;
		*) misuse "unknown option '$1'; valid: --kernel --mode --impl --case --backing --order" \
			"--guest --size --ipa --mem --quick --list --metric --out --json --max --local --tree --help" ;;
		esac
	done
	((!local)) || [[ -z $tree ]] || misuse "--local and --tree exclude each other"
}

take() {
	case $1 in
	--kernel) one_of kernel "$2" "${KERNELS[@]}"; kernel=$2 ;;
	--mode) one_of mode "$2" "${MODES[@]}"; modes=("$2") ;;
	--impl) one_of implementation "$2" c rust; impls=$2 ;;
	--case) one_of case "$2" "${CASES[@]}"; only_case=$2 ;;
	--backing) one_of backing "$2" "${BACKINGS[@]}"; only_backing=$2 ;;
	--order) one_of order "$2" "${ORDERS[@]}"; only_order=$2 ;;
	--guest) one_of guest "$2" "${GUESTS[@]}" none; only_guest=$2 ;;
	--size) [[ $2 =~ ^[1-9][0-9]*[KMGT]?$ ]] || misuse "--size '$2' is not a size; such as 64M or 2G"
		set_size=$2 ;;
	--ipa) [[ $2 =~ ^(3[2-9]|4[0-9]|5[0-2])$ ]] || misuse "--ipa '$2' is not in 32 to 52"
		set_ipa=$2 ;;
	--mem) [[ $2 =~ ^[1-9][0-9]*[MG]$ ]] || misuse "--mem '$2' is not a size; such as 4G"
		mem=$2 ;;
	--metric) one_of metric "$2" "${METRICS[@]}"; metric=$2 ;;
	--max) [[ $2 =~ ^[0-9]+(\.[0-9]+)?$ ]] || misuse "--max '$2' is not a number"
		max=$2 ;;
	--out) out=$2 ;;
	--json) [[ -d $(dirname "$2") ]] || misuse "--json '$2': no such directory"
		json=$2 ;;
	--tree) [[ -d $2 ]] || misuse "--tree '$2': no such directory"
		tree=$(cd "$2" && pwd) ;;
	esac
}

# What every kernel of that kind can tell.
usual_metric() {
	if ((local)); then
		[[ -e $COMPONENT ]] && echo destroy_ns || echo close_ns
	elif [[ -n $tree ]]; then
		echo close_insns
	else
		echo destroy_insns
	fi
}

show_list() {
	local mode
	{
		echo mode case size IPA backing order guest
		for mode in "${modes[@]}"; do selected "$mode" | sed "s/^/$mode /"; done
	} | column -t
}

# selected MODE - its case lines, as far as the measured kernel can run them.
selected() {
	if [[ -n $tree ]]; then real_guest_cases_of "$1"; else cases_of "$1"; fi
}

# The verdict: one bound for all rows with --max, else the file of limits.
report() {
	local fact options=(--kernel "$release" --metric "$metric" --svg "$OUT/destroy.svg")
	options+=(--json "${json:-$OUT/destroy.json}")
	for fact in "${facts[@]}"; do options+=(--host "$fact"); done
	if [[ -n $max ]]; then
		options+=(--max "$max")
	elif ((!local)); then
		options+=(--limits "$ROOT/scripts/bench/limits.toml")
	fi
	"$S2REPORT" "${options[@]}" "$rows"
}

main() {
	local mode failed=() code=0
	parse "$@"
	if ((list)); then show_list; exit; fi
	# Whatever ends a run before its verdict must not look like one: a bisect would
	# blame the commit, while 125 makes it skip.
	judged=0
	trap '((judged)) || [[ -z $max ]] || exit 125' EXIT
	metric=${metric:-$(usual_metric)}
	[[ $kernel == "${KERNELS[0]}" ]] || OUT+=/$kernel
	OUT=${out:-$OUT}
	mkdir -p "$OUT" || die "cannot write to $OUT; choose another place with --out"
	rows=$OUT/rows.jsonl
	: > "$rows"

	S2REPORT=$(native s2report s2report)
	if ((local)); then
		prepare_local
	elif [[ -n $tree ]]; then
		prepare_tree
	else
		prepare_kernel
	fi
	for mode in "${modes[@]}"; do measure "$mode" || failed+=("$mode"); done
	[[ -s $rows ]] || die "no case was measured; the reasons are above"

	report || code=$?
	say "$(clock $SECONDS); rows, picture and consoles are in $OUT"
	if ((${#failed[@]})); then
		say "not all is well in: ${failed[*]}; see above"
		((code)) || code=$([[ -n $max ]] && echo 125 || echo 1)
	fi
	# shellcheck disable=SC2034  # the trap reads it
	((code > 1)) || judged=1
	exit "$code"
}

main "$@"
