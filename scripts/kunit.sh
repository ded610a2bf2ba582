#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# The KUnit tests of the component, inside a booted kernel.

set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/ktap.sh
. "$ROOT/scripts/ktap.sh"

usage() {
	cat <<EOF_USAGE
Usage: scripts/kunit.sh [options]

Builds the kernel, boots it with the component's KUnit tests switched on, in each mode and shows
their KTAP. Fails when a test fails, when none ran, or on a WARNING.

  --kernel V      ${KERNELS[*]} (default ${KERNELS[0]})
  --config C      ${INTEGRATED[*]} (default bench)
  --mode MODE     ${MODES[*]} (default: one after the other)
  --filter GLOB   suites to run (default 'kvm_s2*')
  --help          this text

Examples:
  scripts/kunit.sh --mode nvhe
  scripts/kunit.sh --config debug --mode protected
EOF_USAGE
}

kernel=${KERNELS[0]}
config=bench
modes=("${MODES[@]}")
filter='kvm_s2*'
while (($#)); do
	case $1 in
	--kernel) kernel=$(value_of "$@"); one_of kernel "$kernel" "${KERNELS[@]}"; shift ;;
	--config) config=$(value_of "$@"); one_of config "$config" "${INTEGRATED[@]}"; shift ;;
	--mode) modes=("$(value_of "$@")"); one_of mode "${modes[0]}" "${MODES[@]}"; shift ;;
	--filter) filter=$(value_of "$@"); shift ;;
	-h | --help) usage; exit ;;
	*) misuse "unknown option '$1'; valid: --kernel --config --mode --filter --help" ;;
	esac
	shift
done

# run_mode MODE - boots, shows the results, and fails unless all of them are good.
run_mode() {
	local log=$OUT/kunit-$kernel-$config-$1.log code=0 passed failed skipped
	"$ROOT/scripts/qemu.sh" --mode "$1" --image "$image" --initrd "$initrd" --log "$log" \
		--append "$(kunit_parameters "$filter")" || code=$?
	ktap "$log"
	read -r passed failed skipped <<< "$(count_cases "$log")"
	say "$1: $passed cases passed, $failed failed, $skipped skipped"
	((passed || failed)) || say "$1: no test ran; does a suite match '$filter'?"
	((code == 0 && passed && !failed))
}

"$ROOT/scripts/kernel.sh" --kernel "$kernel" --config "$config"
image=$("$ROOT/scripts/kernel.sh" --kernel "$kernel" --config "$config" --print image)
mkdir -p "$OUT"
script=$(mktemp)
trap 'rm -f "$script"' EXIT
echo 'exit 0' > "$script"
initrd=$("$ROOT/scripts/initramfs.sh" --run "$script" --no-selftests --out "$OUT/kunit.cpio" \
	--kernel "$kernel" --config "$config")
bad=()
for mode in "${modes[@]}"; do run_mode "$mode" || bad+=("$mode"); done
((${#bad[@]} == 0)) || die "KUnit failed in: ${bad[*]}"
