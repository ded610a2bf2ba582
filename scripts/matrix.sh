#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Every shape of a stage-2: page size, width of guest addresses, root.

set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/bench/machine.sh
. "$ROOT/scripts/bench/machine.sh"

# Widths with roots of 1 to 16 tables at each level, and the widest of all: with
# FEAT_LPA2's descriptors for 4K and 16K pages, with FEAT_LPA's for 64K.
IPAS=32,34,36,39,40,42,43,44,47,48,52
PAGES=(4k 16k 64k)

usage() {
	cat <<EOF_USAGE
Usage: scripts/matrix.sh [options]

Builds a kernel for each page size, runs the KUnit tests in each mode, destroys
tables of all widths of guest addresses (${IPAS//,/ }) and real
guests with upstream's code and with ours, and prints what became of each. Fails
when anything failed or leaked.

  --kernel V      ${KERNELS[*]} (default ${KERNELS[0]})
  --pages P       ${PAGES[*]} (default: one after the other)
  --mode MODE     ${MODES[*]} (default: one after the other)
  --help          this text

Example:
  scripts/matrix.sh --pages 16k --mode vhe
EOF_USAGE
}

kernel=${KERNELS[0]}
pages=("${PAGES[@]}")
modes=("${MODES[@]}")
while (($#)); do
	case $1 in
	--kernel) kernel=$(value_of "$@"); one_of kernel "$kernel" "${KERNELS[@]}"; shift ;;
	--pages) pages=("$(value_of "$@")"); one_of 'page size' "${pages[0]}" "${PAGES[@]}"; shift ;;
	--mode) modes=("$(value_of "$@")"); one_of mode "${modes[0]}" "${MODES[@]}"; shift ;;
	-h | --help) usage; exit ;;
	*) misuse "unknown option '$1'; valid: --kernel --pages --mode --help" ;;
	esac
	shift
done

# 4K pages are those of the bench's kernel.
config_of() { [[ $1 == 4k ]] && echo bench || echo "$1"; }

# What the machine runs. Rows go to the table; what it cannot do says why.
script() {
	cat <<-END
		failed=0
		run() {
			local code=0
			s2_destroy_time --json --insns "\$@" || code=\$?
			((code == 0 || code == 4)) || failed=1
		}
		for impl in rust c; do
			run --impl \$impl --backing kernel --ipa $IPAS --case empty,sparse
			run --impl \$impl --backing kernel --ipa $IPAS --case dense-4k --size 1G
			run --impl \$impl --case 1m,dense-4k --size 16M --order close-first,sigkill
		done
		exit \$failed
	END
}

# destroy PAGES MODE - the rows of one boot, and a line for what was skipped or failed.
destroy() {
	local config image run=$OUT/matrix-$1.sh log=$OUT/matrix-$1-$2.log code=0
	config=$(config_of "$1")
	image=$("$ROOT/scripts/kernel.sh" --kernel "$kernel" --config "$config" --print image)
	script > "$run"
	"$ROOT/scripts/initramfs.sh" --run "$run" --kernel "$kernel" --config "$config" \
		--out "$OUT/matrix.cpio" > /dev/null
	"$ROOT/scripts/qemu.sh" --mode "$2" --image "$image" --initrd "$OUT/matrix.cpio" --quiet \
		--timeout 1800 --log "$log.console" > "$log" || code=$?
	grep '^{' "$log" >> "$rows" || true
	grep -v '^{' "$log" | sort | uniq -c | sed "s/^ */$1 $2: /" || true
	return "$code"
}

# kunit PAGES MODE - the last line of the KUnit run.
kunit() {
	local log=$OUT/matrix-kunit-$1-$2.log code=0
	"$ROOT/scripts/kunit.sh" --kernel "$kernel" --config "$(config_of "$1")" --mode "$2" > "$log" 2>&1 ||
		code=$?
	printf '%s KUnit %s\n' "$1" "$(grep 'cases passed' "$log" | sed 's/^kunit.sh: //' || tail -n 1 "$log")"
	return "$code"
}

mkdir -p "$OUT"
S2REPORT=$(native s2report s2report)
bad=()
for size in "${pages[@]}"; do
	"$ROOT/scripts/kernel.sh" --kernel "$kernel" --config "$(config_of "$size")"
	rows=$OUT/matrix-$size.jsonl
	: > "$rows"
	for mode in "${modes[@]}"; do
		kunit "$size" "$mode" || bad+=("KUnit $size $mode")
		destroy "$size" "$mode" || bad+=("$size $mode")
	done
	"$S2REPORT" --kernel "$kernel, $size pages" --limits "$ROOT/scripts/bench/matrix.toml" "$rows" ||
		bad+=("limits $size")
done
((${#bad[@]} == 0)) || die "not all is well: ${bad[*]}"
