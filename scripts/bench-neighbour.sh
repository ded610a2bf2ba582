#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# What a dying VM does to its neighbours: the close of a small one, upstream
# against ours.

set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage() {
	cat <<EOF_USAGE
Usage: scripts/bench-neighbour.sh [options]

Boots a machine of two CPUs per mode. While a large VM dies on one of them, small
VMs are closed on the other; their times are compared with those on the idle
machine, under upstream's destroy and under ours. Fails when a close under ours
takes more than half of the large VM's end, or with --max-ratio when p99 grows.

Two CPUs run freely, so figures are wall time, and want a quiet machine.

  --kernel V      ${KERNELS[*]} (default ${KERNELS[0]})
  --mode MODE     ${MODES[*]} (default: one after the other)
  --size N        of a large VM whose table is built in the kernel (default 128G)
  --real N        of one whose memory is real, in protected mode (default 512M)
  --deaths N      large VMs per line (default 5)
  --max-ratio R   fail when p99 under ours is more than R times that of idle
  --quick         16G, 128M and one death
  --help          this text

Examples:
  scripts/bench-neighbour.sh --mode vhe --max-ratio 1.2
  scripts/bench-neighbour.sh --quick
EOF_USAGE
}

kernel=${KERNELS[0]}
modes=("${MODES[@]}")
size=128G real=512M deaths=5 ratio=''
while (($#)); do
	case $1 in
	--kernel) kernel=$(value_of "$@"); one_of kernel "$kernel" "${KERNELS[@]}"; shift ;;
	--mode) modes=("$(value_of "$@")"); one_of mode "${modes[0]}" "${MODES[@]}"; shift ;;
	--size) size=$(value_of "$@"); shift ;;
	--real) real=$(value_of "$@"); shift ;;
	--deaths) deaths=$(value_of "$@"); shift ;;
	--max-ratio) ratio=$(value_of "$@"); shift ;;
	--quick) size=16G real=128M deaths=1 ;;
	-h | --help) usage; exit ;;
	*) misuse "unknown option '$1'; valid: --kernel --mode --size --real --deaths --max-ratio" \
		"--quick --help" ;;
	esac
	shift
done

# Lines of: guest order options. On a protected host the pages of a non-protected
# guest must be back before its memory goes, so one of them is only shown.
deaths_of() {
	if [[ $1 == protected ]]; then
		echo normal close-first --real --size "$real" --max-share 0.5
		echo normal sigkill --real --size "$real"
		echo protected close-first --size "$real" --max-share 0.5
		echo protected sigkill --size "$real" --max-share 0.5
	else
		echo normal close-first --size "$size" --max-share 0.5
		echo normal sigkill --size "$size" --max-share 0.5
	fi
}

# What the machine runs: ours is judged, upstream's is shown.
script_of() {
	local guest order options
	echo "failed=0"
	while read -r guest order options; do
		[[ -z $ratio || $options != *max-share* ]] || options+=" --max-ratio $ratio"
		echo "n='s2_neighbour --deaths $deaths --guest $guest --order $order'"
		echo "\$n ${options%%--max-*} --impl c"
		echo "\$n $options --impl rust || failed=1"
	done < <(deaths_of "$1")
	echo "exit \$failed"
}

"$ROOT/scripts/kernel.sh" --kernel "$kernel"
image=$("$ROOT/scripts/kernel.sh" --kernel "$kernel" --print image)
mkdir -p "$OUT"
script=$(mktemp)
trap 'rm -f "$script"' EXIT
bad=()
for mode in "${modes[@]}"; do
	say "$mode"
	script_of "$mode" > "$script"
	initrd=$("$ROOT/scripts/initramfs.sh" --run "$script" --out "$OUT/neighbour.cpio" --kernel "$kernel")
	"$ROOT/scripts/qemu.sh" --mode "$mode" --image "$image" --initrd "$initrd" --cpus 2 --no-icount \
		--log "$OUT/neighbour-$kernel-$mode.log" --timeout 1800 | grep -vE '^(TAP|1\.\.1|# Totals)' ||
		bad+=("$mode")
done
((${#bad[@]} == 0)) || die "a neighbour was held up in: ${bad[*]}"
