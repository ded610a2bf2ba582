# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The results of KUnit on the console of a booted machine. Sourced.

# What makes a kernel run the suites that match $1 while it boots.
kunit_parameters() { echo "kunit.enable=1 kunit.autorun=1 kunit.filter_glob=$1"; }

# ktap LOG - kernel lines without their time, from the version line to the last result.
ktap() {
	sed -n 's/^\[ *[0-9.]*\] //p' "$1" | awk '
		/^KTAP version/ { on = 1 }
		on { held = held $0 "\n" }
		on && /^ *(not )?ok / { printf "%s", held; held = "" }'
}

# count_cases LOG - "passed failed skipped". Cases are indented once; suites are
# not, and parameters of a case deeper.
count_cases() {
	ktap "$1" | awk '
		/^    (not )?ok .*# SKIP/ { skipped++; next }
		/^    ok / { passed++ }
		/^    not ok / { failed++ }
		END { print passed + 0, failed + 0, skipped + 0 }'
}
