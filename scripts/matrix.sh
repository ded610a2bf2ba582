#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Every shape of a stage-2, every preemption model, both compilers: one table.

set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/ktap.sh
. "$ROOT/scripts/ktap.sh"
# shellcheck source=scripts/bench/machine.sh
. "$ROOT/scripts/bench/machine.sh"
# shellcheck source=scripts/matrix/cells.sh
. "$ROOT/scripts/matrix/cells.sh"
# shellcheck source=scripts/matrix/pages.sh
. "$ROOT/scripts/matrix/pages.sh"
# shellcheck source=scripts/matrix/preemption.sh
. "$ROOT/scripts/matrix/preemption.sh"

PARTS=(pages preemption)

usage() {
	cat <<EOF_USAGE
Usage: scripts/matrix.sh [options]

Builds the kernels of the matrix, runs KUnit and ends real guests in each of them
with upstream's code and with ours, and prints one table of what became of them.
Fails when anything failed, leaked or warned, or when a cell is empty and nothing
says why. All of it is twelve kernels and takes hours; a cell takes a minute.

  --part P        pages       each page size, with tables of all widths of guest
                              addresses (${IPAS//,/ })
                  preemption  each preemption model and compiler
                  (default: one after the other)
  --kernel V      ${KERNELS[*]} (default: ${KERNELS[0]} for pages, all for preemption)
  --mode MODE     ${MODES[*]} (default: all for pages, ${PREEMPTION_MODES[*]} for preemption)
  --pages P       ${PAGES[*]} (default: one after the other)
  --model M       ${MODELS[*]} (default: one after the other)
  --compiler C    ${COMPILERS[*]} (default: one after the other)
  --help          this text

Examples:
  scripts/matrix.sh --part pages --pages 16k --mode vhe
  scripts/matrix.sh --part preemption --kernel 6.12 --model rt --compiler clang
EOF_USAGE
}

parts=("${PARTS[@]}")
kernels=()
modes=()
pages=("${PAGES[@]}")
models=("${MODELS[@]}")
compilers=("${COMPILERS[@]}")
while (($#)); do
	case $1 in
	--part) parts=("$(value_of "$@")"); one_of part "${parts[0]}" "${PARTS[@]}"; shift ;;
	--kernel) kernels=("$(value_of "$@")"); one_of kernel "${kernels[0]}" "${KERNELS[@]}"; shift ;;
	--mode) modes=("$(value_of "$@")"); one_of mode "${modes[0]}" "${MODES[@]}"; shift ;;
	--pages) pages=("$(value_of "$@")"); one_of 'page size' "${pages[0]}" "${PAGES[@]}"; shift ;;
	--model) models=("$(value_of "$@")"); one_of model "${models[0]}" "${MODELS[@]}"; shift ;;
	--compiler) compilers=("$(value_of "$@")"); one_of compiler "${compilers[0]}" "${COMPILERS[@]}"; shift ;;
	-h | --help) usage; exit ;;
	*) misuse "unknown option '$1'; valid: --part --kernel --mode --pages --model --compiler --help" ;;
	esac
	shift
done

mkdir -p "$OUT"
: > "$cells"
bad=()
for part in "${parts[@]}"; do "${part}_part"; done
show_cells | tee "$OUT/matrix.txt"
((${#bad[@]} == 0)) || die "not all is well: $(printf '%s; ' "${bad[@]}")"
