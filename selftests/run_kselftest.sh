#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Runs installed kselftests, those of kselftest-list.txt beside this script, and
# prints their results as KTAP. Takes the options of the kernel's script of this
# name that make sense here.

set -u
cd "$(dirname "$0")" || exit 1

usage() {
	cat <<-END
	Usage: run_kselftest.sh [options]
	  -t COLLECTION:TEST  run this test (may be repeated)
	  -c COLLECTION       run the tests of this collection (may be repeated)
	  -l                  list the tests
	  -d                  say what would be run
	  -o SECONDS          time limit of each, in place of its settings file's
	  -h                  this text
	END
}

list=$(cat kselftest-list.txt) || exit 1
chosen='' dry=0 limit=''
while getopts t:c:ldo:h option; do
	case $option in
	t) chosen="$chosen $OPTARG" ;;
	c) chosen="$chosen $(echo "$list" | grep "^$OPTARG:")" ;;
	l) echo "$list"; exit ;;
	d) dry=1 ;;
	o) limit=$OPTARG ;;
	h) usage; exit ;;
	*) usage >&2; exit 2 ;;
	esac
done

# shellcheck disable=SC2086  # one word each
set -- ${chosen:-$list}
for test; do
	echo "$list" | grep -qx "$test" || { echo "no such test: $test" >&2; exit 2; }
done

result=$(mktemp) || exit 1
trap 'rm -f "$result"' EXIT
echo "TAP version 13"
echo "1..$#"
nr=0 failed=0
for test; do
	nr=$((nr + 1))
	dir=${test%%:*} program=${test#*:}
	seconds=${limit:-$(sed -n 's/^timeout=//p' "$dir/settings" 2>/dev/null)}
	echo "# selftests: $dir: $program"
	if [ $dry = 1 ]; then
		echo "ok $nr selftests: $dir: $program # SKIP dry run"
		continue
	fi
	# A pipe would lose the exit code.
	(cd "$dir" && timeout "${seconds:-45}" "./$program" 2>&1; echo $? > "$result") | sed 's/^/# /'
	code=$(cat "$result")
	case $code in
	0) echo "ok $nr selftests: $dir: $program" ;;
	4) echo "ok $nr selftests: $dir: $program # SKIP" ;;
	124) echo "not ok $nr selftests: $dir: $program # TIMEOUT $seconds seconds" ;;
	*) echo "not ok $nr selftests: $dir: $program # exit=$code" ;;
	esac
	case $code in 0 | 4) ;; *) failed=1 ;; esac
done
exit $failed
