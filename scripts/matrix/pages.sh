# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Every page size and width of guest addresses. Needs cells.sh and machine.sh.
# shellcheck disable=SC2034,SC2154  # variables of matrix.sh

# Widths with roots of 1 to 16 tables at each level, and the widest of all: with
# FEAT_LPA2's descriptors for 4K and 16K pages, with FEAT_LPA's for 64K.
IPAS=32,34,36,39,40,42,43,44,47,48,52
PAGES=(4k 16k 64k)

# 4K pages are those of the bench's kernel.
config_of() { [[ $1 == 4k ]] && echo bench || echo "$1"; }

# What the machine runs. Rows go to the table; what it cannot do says why.
pages_script() {
	machine_says
	cat <<-END
		for impl in rust c; do
			run s2_destroy_time --json --insns --backing kernel --ipa $IPAS --case empty,sparse
			run s2_destroy_time --json --insns --backing kernel --ipa $IPAS --case dense-4k --size 1G
			run s2_destroy_time --json --insns --case 1m,dense-4k --size 16M --order close-first,sigkill
		done
		exit \$failed
	END
}

# kunit KERNEL CONFIG MODE - the last line of the KUnit run.
kunit() {
	local log=$OUT/matrix-kunit-$2-$3.log code=0
	"$ROOT/scripts/kunit.sh" --kernel "$1" --config "$2" --mode "$3" > "$log" 2>&1 || code=$?
	printf '%s KUnit %s\n' "$2" "$(grep 'cases passed' "$log" | sed 's/^kunit.sh: //' || tail -n 1 "$log")"
	return "$code"
}

# one_page_size KERNEL PAGES - its machines, and the table of its figures.
one_page_size() {
	local config run=$OUT/matrix-pages.sh rows=$OUT/matrix-$2.jsonl mode log code
	config=$(config_of "$2")
	"$ROOT/scripts/kernel.sh" --kernel "$1" --config "$config"
	pages_script > "$run"
	: > "$rows"
	for mode in "${modes[@]:-${MODES[@]}}"; do
		log=$OUT/matrix-$1-$2-$mode.log code=0
		kunit "$1" "$config" "$mode" || bad+=("KUnit $2 $mode")
		boot_cell "$1" "$config" "$mode" "$run" "$log" '' || code=$?
		grep '^{' "$log" >> "$rows" || true
		grep -v '^[{#]' "$log" | sort | uniq -c | sed "s/^ */$2 $mode: /" || true
		booted "$1|clang|$2|$(built_in "$1")|$mode" "$code" "$OUT/kunit-$1-$config-$mode.log" "$log"
	done
	"$S2REPORT" --kernel "$1, $2 pages" --limits "$ROOT/scripts/bench/matrix.toml" "$rows" ||
		bad+=("limits $2")
}

pages_part() {
	local size
	S2REPORT=$(native s2report s2report)
	for size in "${pages[@]}"; do one_page_size "${kernels[0]:-${KERNELS[0]}}" "$size"; done
}
