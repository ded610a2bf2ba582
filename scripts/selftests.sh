#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# The kselftest programs, in a booted machine.

set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage() {
	cat <<EOF_USAGE
Usage: scripts/selftests.sh [options] [-- arguments of s2_destroy_time]

Builds kernel and selftests, boots each mode and runs them there, under both
implementations: s2_destroy_time, real guests with one row per way to end them;
s2_reuse, whose guests use the memory of the last one again; and s2_hard, ends that
are out of the ordinary. With arguments only s2_destroy_time runs. Ends with 4 when
all of it was skipped.

  --kernel V      ${KERNELS[*]} (default ${KERNELS[0]})
  --config C      bench, debug or vanilla (default bench)
  --mode MODE     ${MODES[*]} (default: one after the other)
  --test PROGRAM  only this one (may be repeated)
  --timeout SEC   real time for one boot (default 900)
  --help          this text

Examples:
  scripts/selftests.sh --mode protected --test s2_reuse
  scripts/selftests.sh --mode nvhe -- --case dense-4k --size 64M --runs 3
  scripts/selftests.sh -- --help
EOF_USAGE
}

kernel=${KERNELS[0]}
config=bench
modes=("${MODES[@]}")
limit=900
tests=()
while (($#)); do
	case $1 in
	--kernel) kernel=$(value_of "$@"); one_of kernel "$kernel" "${KERNELS[@]}"; shift ;;
	--config) config=$(value_of "$@"); one_of config "$config" "${CONFIGS[@]}"; shift ;;
	--mode) modes=("$(value_of "$@")"); one_of mode "${modes[0]}" "${MODES[@]}"; shift ;;
	--test) tests+=("$(value_of "$@")"); shift ;;
	--timeout) limit=$(value_of "$@"); shift ;;
	-h | --help) usage; exit ;;
	--) shift; break ;;
	*) misuse "unknown option '$1'; valid: --kernel --config --mode --test --timeout --help --" ;;
	esac
	shift
done

((${#tests[@]})) || tests=(s2_destroy_time s2_reuse s2_hard)
programs=$(cd "$ROOT/selftests/src/bin" && echo *)
for test in "${tests[@]}"; do
	# shellcheck disable=SC2086  # one word each
	one_of test "$test" $programs
done
"$ROOT/scripts/kernel.sh" --kernel "$kernel" --config "$config"
image=$("$ROOT/scripts/kernel.sh" --kernel "$kernel" --config "$config" --print image)
mkdir -p "$OUT"
script=$(mktemp)
trap 'rm -f "$script"' EXIT
if (($#)); then
	echo "exec s2_destroy_time ${*@Q}" > "$script"
else
	# Skipping everything (4) is no failure of the other implementation.
	cat > "$script" <<-END
		worst=0
		for impl in rust c; do
			for test in ${tests[*]}; do
				case \$test in
				s2_destroy_time) set -- --setup ;;	# huge pages
				*) set -- ;;
				esac
				\$test --impl \$impl "\$@"
				code=\$?
				[ \$code -le \$worst ] || [ \$code = 4 ] || worst=\$code
			done
		done
		exit \$worst
	END
fi
initrd=$("$ROOT/scripts/initramfs.sh" --run "$script" --out "$OUT/selftests.cpio" \
	--kernel "$kernel" --config "$config")
bad=() skipped=0
for mode in "${modes[@]}"; do
	code=0
	say "$mode"
	"$ROOT/scripts/qemu.sh" --mode "$mode" --image "$image" --initrd "$initrd" \
		--log "$OUT/selftests-$kernel-$config-$mode.log" --timeout "$limit" || code=$?
	case $code in
	0) ;;
	4) skipped=$((skipped + 1)) ;;
	*) bad+=("$mode") ;;
	esac
done
((${#bad[@]} == 0)) || die "selftests failed in: ${bad[*]}"
((skipped < ${#modes[@]})) || exit 4
