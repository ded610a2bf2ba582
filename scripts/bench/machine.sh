# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Where the bench runs: a booted machine, or this one. Needs lib.sh, cases.sh
# and the variables of bench-destroy.sh.
# shellcheck disable=SC2034,SC2154

S2REPORT=''     # the program that reads rows
image=''        # kernel to boot
release=''      # its name in the results
facts=()        # what else is known of the machine
COMPONENT=/sys/module/kvm_s2/parameters/impl # what a kernel with it has
real_seconds=3600 # a boot that takes longer counts as hung

# native PACKAGE PROGRAM - the path of a program for this machine: built from the
# workspace, or where there is none, as in an unpacked package, found in PATH.
native() {
	local cargo target=${CARGO_TARGET_DIR:-$CACHE/target}
	if [[ ! -f $ROOT/Cargo.toml ]]; then
		PATH=$ROOT/kvm_s2:$PATH command -v "$2" || die "no $2 in PATH"
		return
	fi
	cargo=$(find_cargo) || die "no cargo >= $RUST_FLOOR to build $2 with; run scripts/setup.sh"
	(cd "$ROOT" && CARGO_TARGET_DIR=$target "$cargo" build --quiet --release -p "$1" >&2) ||
		die "$2 does not build; the compiler's words are above"
	printf '%s\n' "$target/release/$2"
}

prepare_kernel() {
	need_space 2
	"$ROOT/scripts/kernel.sh" --kernel "$kernel" || die "Linux $kernel could not be built"
	image=$("$ROOT/scripts/kernel.sh" --kernel "$kernel" --print image)
	release=$("$ROOT/scripts/kernel.sh" --kernel "$kernel" --print release)
}

# How the running kernel uses EL2: it says so at boot.
running_mode() {
	case $({ cat /proc/cmdline; dmesg | grep 'mode initialized successfully'; } 2>/dev/null) in
	*kvm-arm.mode=protected* | *'Protected '*) echo protected ;;
	*'Hyp '*) echo nvhe ;;
	*) echo vhe ;;
	esac
}

# What a figure in nanoseconds means nothing without, as NAME=WORDS.
host_facts() {
	local cpu=/sys/devices/system/cpu name governor
	name=$({ lscpu | sed -n 's/^Model name: *//p' | paste -sd,; } 2>/dev/null) || name=
	[[ -n $name && $name != - ]] ||
		name="MIDR_EL1 $(cat $cpu/cpu0/regs/identification/midr_el1 2>/dev/null || echo unknown)"
	governor=$(cat $cpu/cpu*/cpufreq/scaling_governor 2>/dev/null | sort -u | paste -sd,) || governor=
	echo "cpu=$name, $(nproc) online"
	echo "kernel=$(uname -srvm)"
	echo "governor=${governor:-none}"
	echo "mode=$(running_mode)"
	echo "component=$([[ -e $COMPONENT ]] && echo present || echo absent)"
}

prepare_local() {
	local program
	[[ $(uname -m) == aarch64 ]] || die "--local measures this machine, and it is $(uname -m)," \
		"not arm64; without --local an arm64 machine is emulated"
	[[ -e /dev/kvm ]] || die "no /dev/kvm: the kernel was not started at EL2 or has no KVM;" \
		"start it at EL2, without kvm-arm.mode=none"
	((EUID == 0)) || die "choosing the implementation and reading debugfs needs root; use sudo"
	program=$(native s2-selftests s2_destroy_time)
	PATH=$(dirname "$program"):$PATH
	release=$(uname -r)
	modes=("$(running_mode)")
	mapfile -t facts < <(host_facts)
	[[ -e $COMPONENT ]] || {
		say "this kernel is without the component: only its own code is measured"
		impls=current
	}
}

# measure MODE - adds the rows of one mode. Fails when any case failed.
measure() {
	local mode=$1 cases run=$OUT/run-$1.sh flags='--insns --watch' total
	cases=$(selected "$mode")
	[[ -n $cases ]] || { say "$mode: none of the chosen cases exists in this mode"; return 0; }
	((!local)) || flags=''
	run_script "$impls" "$flags" <<< "$cases" > "$run"
	total=$(grep -c '^row ' "$run")
	if ((local)); then
		bash "$run" 2>&1 | watch "$mode" "$total"
	else
		boot "$mode" "$run" | watch "$mode" "$total"
	fi
}

boot() {
	local cpio=$OUT/$1.cpio
	"$ROOT/scripts/initramfs.sh" --run "$2" --kernel "$kernel" --out "$cpio" > /dev/null || return
	"$ROOT/scripts/qemu.sh" --mode "$1" --image "$image" --initrd "$cpio" --mem "$mem" --quiet \
		--timeout "$real_seconds" --log "$OUT/console-$1.log"
}

# watch MODE TOTAL - sorts the lines of the measured machine: rows to the file,
# progress and trouble to the screen.
watch() {
	local mode=$1 total=$2 done=0 part line='' doing=starting status=0
	while ((status == 0 || status > 128)); do
		status=0
		IFS= read -r -t 1 part || status=$?
		line+=$part
		if ((status > 128)); then
			[[ ! -t 2 ]] || progress "$doing"
			continue
		fi
		case $line in
		'{'*) printf '%s\n' "$line" >> "$rows" ;;
		'# run '*)
			done=$((done + 1))
			doing="$done/$total ${line#\# run }"
			progress "$doing" ;;
		'# fail '* | 'not ok '* | *'# SKIP'*)
			clear_progress
			say "$mode: ${line#\# }" ;;
		esac
		line=''
	done
	clear_progress
}

clear_progress() { [[ ! -t 2 ]] || printf '\r\033[K' >&2; }

# A line that renews itself on a terminal, one line per case elsewhere.
progress() {
	if [[ -t 2 ]]; then
		printf '\r\033[K%.*s' "$((${COLUMNS:-80} - 1))" "$(clock $SECONDS) $mode $1" >&2
	else
		printf '%s %s %s\n' "$(clock $SECONDS)" "$mode" "$1" >&2
	fi
}
