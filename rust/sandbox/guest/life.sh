# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Runs inside the emulated arm64 host of arm64.sh.

set -eu
mkdir -p /tmp
cd /tmp
api="--api-socket /tmp/api"

# await TEXT - until the guest's console has it.
await() {
	for _ in $(seq 300); do
		if grep -q "$1" console 2>/dev/null; then return; fi
		sleep 1
	done
	echo "the guest's console has no '$1':"
	cat console
	exit 1
}

echo "# a built-in guest"
# shellcheck disable=SC2086  # two words
sandbox run --keep $api --memory 32M --cpus 2 --touch 8M --beat 4M --console-file console &
await B
# shellcheck disable=SC2086
{
	sandbox pause $api --snapshot snapshot
	for mode in copy mmap on-demand; do
		: >console
		sandbox restore $api --snapshot snapshot --resume --memory-mode $mode
		await BB
		if grep -q '!' console; then
			echo "a page lost its content"
			exit 1
		fi
		sandbox info $api | grep '"effective"'
		sandbox pause $api --snapshot snapshot --release before-reply
	done
	sandbox counters $api --json | grep '"released":1,"inline":3,"failed":0'
	sandbox shutdown $api
}
wait

# shellcheck source=/dev/null
if [ -e /guest/Image ]; then . /linux.sh; fi

# The kernel folds its per-CPU counts every second or so.
for _ in 1 2 3 4 5; do
	grep -q '^SecPageTables: *0 kB' /proc/meminfo && exit 0
	sleep 1
done
grep SecPageTables /proc/meminfo
exit 1
