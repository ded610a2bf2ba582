#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Every check of this repository, from fast to slow.

set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage() {
	cat <<EOF_USAGE
Usage: scripts/test.sh [options] [STEP...]

Runs every check, or only the steps named, one line each. The last line counts
them; the exit code is 1 when one failed. What a step printed is in
$OUT/test/STEP.log

  --kernel V only the steps that are about this kernel: ${KERNELS[*]}
  --list     show the steps
  --help     this text

Examples:
  scripts/test.sh
  scripts/test.sh clippy kunit-protected
  scripts/test.sh --kernel 6.12
EOF_USAGE
}

# Each step is a function step_NAME, "-" being "_"; it fails by its exit code,
# and with 4 it is skipped for the reason on its last line.
STEPS=(fmt clippy cargo-test shellcheck kernel integrate selftests-build)
for mode in "${MODES[@]}"; do STEPS+=("kunit-$mode"); done
for mode in "${MODES[@]}"; do STEPS+=("selftests-$mode"); done
STEPS+=(bench package patches)
STEPS+=(kernel-6.12 integrate-6.12 kunit-6.12 selftests-6.12 bench-6.12 latency-6.12)

skip() { printf '%s\n' "$*"; exit 4; }

# needs_subcommand NAME HOW - skips when this cargo was installed without it.
needs_subcommand() {
	"$cargo" "$1" --version >/dev/null 2>&1 || skip "no cargo $1; install $2"
}

step_fmt() {
	needs_subcommand fmt 'rustfmt (rustup component add rustfmt, or the package rustfmt-web or rustfmt)'
	"$cargo" fmt --all --check
	# The kernel's Rust is no workspace member.
	find arch -name '*.rs' -exec rustfmt --edition 2021 --check {} +
}

step_clippy() {
	needs_subcommand clippy 'clippy (rustup component add clippy, or the package rust-web-clippy or rust-clippy)'
	"$cargo" clippy --workspace --all-targets -- -D warnings
}

step_cargo_test() { "$cargo" test --workspace; }
step_shellcheck() { find scripts selftests .ci -type f \( -name '*.sh' -o -name run \) -exec shellcheck {} +; }

step_kernel() { scripts/kernel.sh --config bench; }
step_integrate() { scripts/test-integrate.sh "$(scripts/kernel.sh --print src)"; }
step_selftests_build() { arm64_cargo build --release -p s2-selftests; }

step_kunit_vhe() { scripts/kunit.sh --mode vhe; }
step_kunit_nvhe() { scripts/kunit.sh --mode nvhe; }
step_kunit_protected() { scripts/kunit.sh --mode protected; }
step_selftests_vhe() { scripts/selftests.sh --mode vhe; }
step_selftests_nvhe() { scripts/selftests.sh --mode nvhe; }
step_selftests_protected() { scripts/selftests.sh --mode protected; }
step_bench() { scripts/bench-destroy.sh --quick --out "$OUT/test/bench"; }
step_package() { scripts/test-package.sh; }
step_patches() { scripts/setup.sh --kernel 6.12; scripts/test-patches.sh; }

step_kernel_6.12() { scripts/kernel.sh --kernel 6.12; }
step_integrate_6.12() { scripts/test-integrate.sh "$(scripts/kernel.sh --kernel 6.12 --print src)"; }
step_kunit_6.12() { scripts/kunit.sh --kernel 6.12; }
step_selftests_6.12() { scripts/selftests.sh --kernel 6.12 --mode protected; }
step_bench_6.12() { scripts/bench-destroy.sh --kernel 6.12 --quick --out "$OUT/test/bench-6.12"; }
step_latency_6.12() { scripts/latency.sh; }

# run STEP - one line: verdict, seconds, name and, where it helps, the reason.
run() {
	local log=$OUT/test/$1.log start=$SECONDS code
	[[ ! -t 1 ]] || printf '....        %s\r' "$1"
	# A "||" here would switch errexit off inside the step.
	set +e
	(set -e; "step_${1//-/_}") > "$log" 2>&1 < /dev/null
	code=$?
	set -e
	case $code in
	0)
		passed=$((passed + 1))
		printf 'ok   %4d s  %s\n' $((SECONDS - start)) "$1" ;;
	4)
		skipped=$((skipped + 1))
		printf 'SKIP %4d s  %s: %s\n' $((SECONDS - start)) "$1" "$(tail -n 1 "$log")" ;;
	*)
		failed=$((failed + 1))
		printf 'FAIL %4d s  %s: exit %d; the end of %s:\n' $((SECONDS - start)) "$1" "$code" "$log"
		tail -n 30 "$log" | sed 's/^/    /' ;;
	esac
}

# steps_of SERIES - those of its kernel; the usual one's have no series in the name.
steps_of() {
	case $1 in
	"${KERNELS[0]}") printf '%s\n' kernel integrate {kunit,selftests}-{vhe,nvhe,protected} bench package ;;
	*) printf '%s\n' "${STEPS[@]}" | grep -- "-$1\$" ;;
	esac
}

chosen=()
while (($#)); do
	case $1 in
	--list) printf '%s\n' "${STEPS[@]}"; exit ;;
	-h | --help) usage; exit ;;
	--kernel)
		kernel=$(value_of "$@"); one_of kernel "$kernel" "${KERNELS[@]}"
		mapfile -t chosen < <(steps_of "$kernel")
		shift ;;
	-*) misuse "unknown option '$1'; valid: --kernel --list --help" ;;
	*) one_of step "$1" "${STEPS[@]}"; chosen+=("$1") ;;
	esac
	shift
done
((${#chosen[@]})) || chosen=("${STEPS[@]}")

cd "$ROOT"
scripts/setup.sh
cargo=$(find_cargo) || die "no cargo >= $RUST_FLOOR; run scripts/setup.sh"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$CACHE/target}
mkdir -p "$OUT/test"
passed=0 failed=0 skipped=0
for step in "${chosen[@]}"; do run "$step"; done
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
((failed == 0))
