# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The table of the matrix: one line for each machine that was booted or, with the
# reason, was not. Needs lib.sh and ktap.sh.
# shellcheck disable=SC2154  # bad is matrix.sh's

cells=$OUT/matrix.cells

# What every script of a machine starts with: it says what the machine is, and
# how to run what may be skipped. Rows go to the console as JSON.
machine_says() {
	cat <<-'END'
		case $(uname -v) in
		*PREEMPT_RT*) model=rt ;;
		*PREEMPT_DYNAMIC*) model=$(sed -n 's/.*(\([a-z]*\)).*/\1/p' /sys/kernel/debug/sched/preempt) ;;
		*PREEMPT*) model=built-in ;;
		*) model=none ;;
		esac
		echo "# in force ${model:-unknown} $(cat /proc/version)"
		failed=0
		run() {
			local code=0
			"$@" --impl $impl || code=$?
			((code == 0 || code == 4)) || failed=1
		}
	END
}

# What the bench's kernel was configured with.
built_in() { [[ $1 == 6.12 ]] && echo none || echo built-in; }

# boot_cell KERNEL CONFIG MODE SCRIPT LOG APPEND - its output becomes LOG, the
# kernel's own words and what qemu.sh says of them LOG.console and LOG.trouble.
boot_cell() {
	local image code
	image=$("$ROOT/scripts/kernel.sh" --kernel "$1" --config "$2" --print image)
	"$ROOT/scripts/initramfs.sh" --run "$4" --kernel "$1" --config "$2" --out "$OUT/matrix.cpio" \
		> /dev/null || return
	"$ROOT/scripts/qemu.sh" --mode "$3" --image "$image" --initrd "$OUT/matrix.cpio" --quiet \
		--timeout 1800 ${6:+--append "$6"} --log "$5.console" > "$5" 2> "$5.trouble" || {
		code=$?
		cat "$5.trouble" >&2
		return "$code"
	}
}

# figure LOG KEY WORDS.. - KEY of the first row that has it and all the words.
figure() {
	local log=$1 key=$2 rows value
	shift 2
	rows=$(grep "^{.*\"$key\":[0-9]" "$log" || true)
	while (($#)); do rows=$(grep -F "$1" <<< "$rows" || true); shift; done
	value=$(sed -n "s/.*\"$key\":\([0-9.]*\)[,}].*/\1/p;q" <<< "$rows")
	echo "${value:--}"
}

per_page() {
	figure "$2" insns_per_page "\"impl\":\"$1\"" '"case":"dense-4k"' '"order":"close-first"' '"guest":"normal"'
}

# How long a task of higher priority waited at worst, in microseconds.
waited() {
	local ns
	ns=$(figure "$2" worst_wait_ns "\"impl\":\"$1\"")
	[[ $ns == - ]] && echo - || echo "$((ns / 1000))"
}

# WHAT=kernel|compiler|pages|preemption|mode, then the other fields of a line.
cell() { (IFS='|'; echo "$*") >> "$cells"; }

# booted WHAT CODE KUNIT-LOG LOG - the line of a machine that ran. The code is that
# of the boot; what the machine must have been is in WHAT.
booted() {
	local what=$1 code=$2 log=$4 passed failed skipped warnings leaked force compiler model verdict=ok
	read -r passed failed skipped <<< "$(count_cases "$3")"
	warnings=$(sed -n 's/.*: \([0-9]*\) such lines.*/\1/p' "$log.trouble")
	leaked=$({ grep -o '"leaked":[0-9]*' "$log" || true; } | awk -F: '{ n += $2 } END { print n + 0 }')
	force=$(sed -n 's/^# in force \([a-z-]*\) .*/\1/p' "$log")
	IFS='|' read -r _ compiler _ model _ <<< "$what"
	[[ $(per_page rust "$log") != - && $(per_page c "$log") != - ]] || verdict='no figures'
	grep -q "^# in force .*$compiler" "$log" || verdict="not a kernel of $compiler"
	[[ $force == "$model" ]] || verdict="runs with ${force:-nothing known}"
	((passed && !failed)) || verdict='KUnit failed'
	((code == 0)) || verdict="boot ended with $code"
	((leaked == 0)) || verdict=leaked
	[[ $verdict == ok ]] || bad+=("$what: $verdict ($log.console)")
	cell "$what" "$passed/$failed/$skipped" "$(per_page c "$log")" "$(per_page rust "$log")" \
		"$(waited c "$log")" "$(waited rust "$log")" "$leaked" "${warnings:-0}" "$verdict"
}

# absent WHAT REASON - the line of a machine that there cannot be.
absent() { cell "$1" - - - - - - - "$2"; }

show_cells() {
	echo
	{
		echo 'kernel|compiler|pages|preemption|mode|KUnit|upstream|ours|upstream waits|ours waits|leaked|warnings|verdict'
		cat "$cells"
	} | column -t -s'|'
	cat <<-END

		KUnit: cases passed/failed/skipped. upstream, ours: instructions per page of a guest that
		wrote to each of its pages. waits: the longest that a task of higher priority waited for
		the CPU of a destroy of 8 GiB, in thousands of instructions; "-" where EL2 has the tables
		of guests, and for page sizes. preemption "built-in": lazy, which uname does not say.
	END
}
