#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Do the tests notice mistakes? Makes each one of scripts/bugs.list, and runs the
# test that must fail then.

set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage() {
	cat <<EOF_USAGE
Usage: scripts/test-bugs.sh [options] [BUG...]

Makes each mistake of scripts/bugs.list, one at a time, builds, runs one test and
says which check failed. Ends with 1 when a mistake was not noticed. Each test is
run without any mistake first, and must pass.

Works on a copy of this checkout. Kernel builds are laid over those of $CACHE
and thrown away after. Where that is not possible (it takes a mount namespace) they
go to $CACHE/bugs, which begins with a build of ten minutes.

  --list     show the mistakes and their tests
  --help     this text

What each run printed is in $OUT/bugs/BUG.log

Examples:
  scripts/test-bugs.sh
  scripts/test-bugs.sh flush-missed error-ignored
EOF_USAGE
}

LIST=$ROOT/scripts/bugs.list

# Names of all bugs, in order.
bugs() { awk '/^#/ { next } was && NF == 3 && !/^[-+]/ { print $1 } { was = NF }' "$LIST"; }

# about BUG - its paragraph in the list.
about() { awk -v RS= -v name="$1" '$0 !~ /^#/ && split($0, l, "\n") && split(l[2], f, " ") && f[1] == name' "$LIST"; }
what_of() { about "$1" | sed -n 1p; }
test_of() { about "$1" | awk 'NR == 2 { print $2 }'; }

chosen=()
inside=0
while (($#)); do
	case $1 in
	--list) for bug in $(bugs); do printf '%-30s %-22s %s\n' "$bug" "$(test_of "$bug")" "$(what_of "$bug")"; done; exit ;;
	--inside) inside=1 ;;	# our own: the cache is a copy now
	-h | --help) usage; exit ;;
	-*) misuse "unknown option '$1'; valid: --list --help" ;;
	*) mapfile -t valid < <(bugs); one_of bug "$1" "${valid[@]}"; chosen+=("$1") ;;
	esac
	shift
done
((${#chosen[@]})) || mapfile -t chosen < <(bugs)

# The kernel tree and what is built of it, in a way that the cache does not change.
LAID_OVER=(src build)
OVER=$CACHE/bugs

can_lay_over() {
	# shellcheck disable=SC2016  # for the inner shell
	unshare --mount --map-root-user bash -c '
		try=$(mktemp -d -p "$1") && mkdir "$try"/{down,up,work} || exit
		mount -t overlay overlay -o "lowerdir=$try/down,upperdir=$try/up,workdir=$try/work" "$try/down"
		code=$?
		umount "$try/down" 2>/dev/null
		rm -rf "$try"
		exit $code' bash "$OVER" 2>/dev/null
}

# Runs this script again with a layer over each of those directories.
lay_over() {
	rm -rf "$OVER/over"
	for dir in "${LAID_OVER[@]}"; do mkdir -p "$OVER/over/$dir"/{up,work}; done
	# shellcheck disable=SC2016  # for the inner shell
	unshare --mount --map-root-user bash -c '
		cache=$1 over=$2
		shift 2
		for dir in "$over"/*; do
			mount -t overlay overlay "$cache/${dir##*/}" \
				-o "lowerdir=$cache/${dir##*/},upperdir=$dir/up,workdir=$dir/work" || exit
		done
		exec "$@"' bash "$CACHE" "$OVER/over" "$0" --inside "${chosen[@]}"
}

if ((!inside)); then
	"$ROOT/scripts/setup.sh"
	mkdir -p "$OVER" "${LAID_OVER[@]/#/$CACHE/}"
	code=0
	if can_lay_over; then
		lay_over || code=$?
		rm -rf "$OVER/over"
	else
		say "no overlay file system here; building in $OVER"
		ln -sfn "$TOOLS" "$ARM64" "$OVER"
		KVM_S2_CACHE=$OVER "$0" --inside "${chosen[@]}" || code=$?
	fi
	exit "$code"
fi

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
tar -C "$ROOT" --exclude=./.git --exclude=./target -c . | tar -C "$copy" -x
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$CACHE/target}
cargo=$(find_cargo) || die "no cargo >= $RUST_FLOOR"
logs=$OUT/bugs
mkdir -p "$logs"

# make_bug BUG - changes the copy. A line that is not there exactly once is named.
make_bug() {
	local file before after found
	file=$copy/$(about "$1" | awk 'NR == 2 { print $3 }')
	before=$(about "$1" | sed -n 's/^-//p')
	after=$(about "$1" | sed -n 's/^+//p')
	found=$(grep -cxF -e "$before" "$file" || true)
	((found == 1)) || die "$1: ${file#"$copy/"} has $found lines '$before', not 1"
	awk -v before="$before" -v after="$after" '{ print $0 == before ? after : $0 }' \
		"$file" > "$copy/changed"
	cat "$copy/changed" > "$file"
}

undo_bug() { cp "$ROOT/$(about "$1" | awk 'NR == 2 { print $3 }')" "$copy/$(about "$1" | awk 'NR == 2 { print $3 }')"; }

# build_for TEST, run_test TEST - a test is PROGRAM[:MODE[:CONFIG]].
build_for() {
	local program mode config
	IFS=: read -r program mode config <<< "$1"
	case $program in
	cargo) (cd "$copy" && "$cargo" test -p kvm_s2 --no-run) ;;
	*) "$copy/scripts/kernel.sh" --config "${config:-bench}" ;;
	esac
}

run_test() {
	local program mode config
	IFS=: read -r program mode config <<< "$1"
	case $program in
	cargo) (cd "$copy" && timeout 900 "$cargo" test -p kvm_s2 --no-fail-fast) ;;
	kunit) "$copy/scripts/kunit.sh" --config "${config:-bench}" --mode "$mode" ;;
	*) "$copy/scripts/selftests.sh" --config "${config:-bench}" --mode "$mode" --test "$program" ;;
	esac
}

# The check that failed, from what a run printed: a test's name, or what the kernel said.
failed_check() {
	sed -nE 's/^test (.*) \.\.\. FAILED$/\1/p; s/^ {4}not ok [0-9]+ (.*)/\1/p
		s/^not ok [0-9]+ (.*)/\1/p; s/^\[ *[0-9.]+\] (.*(WARNING|BUG|Oops|Unable).*)/\1/p' "$1" | head -n 1
}

passed=0 missed=()
SECONDS=0
for test in $(for bug in "${chosen[@]}"; do test_of "$bug"; done | sort -u); do
	say "$(clock $SECONDS) $test without any mistake"
	log=$logs/none-${test//:/-}.log
	{ build_for "$test" && run_test "$test"; } > "$log" 2>&1 ||
		die "$test fails as it is; see $log"
done

printf '%-30s %-22s %s\n' MISTAKE TEST 'NOTICED BY'
for bug in "${chosen[@]}"; do
	test=$(test_of "$bug")
	log=$logs/$bug.log
	say "$(clock $SECONDS) $bug: $(what_of "$bug")"
	make_bug "$bug"
	build_for "$test" > "$log" 2>&1 || die "$bug does not build; see $log"
	if run_test "$test" >> "$log" 2>&1; then
		missed+=("$bug")
		printf '%-30s %-22s %s\n' "$bug" "$test" '-'
	else
		check=$(failed_check "$log")
		[[ -n $check ]] || die "$bug: $test failed, but no check of it; see $log"
		passed=$((passed + 1))
		printf '%-30s %-22s %s\n' "$bug" "$test" "$check"
	fi
	undo_bug "$bug"
done
printf '%d noticed, %d not, in %s\n' "$passed" "${#missed[@]}" "$(clock $SECONDS)"
((${#missed[@]} == 0)) || die "not noticed: ${missed[*]}"
