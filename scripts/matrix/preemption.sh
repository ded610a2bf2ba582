# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Every preemption model, with the C of the kernel compiled by clang and by gcc.
# Needs cells.sh.
# shellcheck disable=SC2034,SC2154  # variables of matrix.sh

MODELS=(none voluntary lazy full rt)
COMPILERS=(clang gcc)
# In nVHE the host's tables are destroyed by the same code as in VHE.
PREEMPTION_MODES=(vhe protected)

# not_offered KERNEL MODEL - why arm64 has no such preemption there, or nothing.
not_offered() {
	case $1:$2 in
	7.3:none | 7.3:voluntary) echo "not offered: an architecture with lazy preemption has no $2 (Kconfig.preempt)" ;;
	6.12:lazy) echo 'not offered: lazy preemption came with Linux 6.13' ;;
	esac
}

# config_for KERNEL MODEL COMPILER - the kernel to boot. One has all models but rt,
# and takes its choice from the command line; the bench's may have it built in.
config_for() {
	local config=dynamic
	[[ $2 != rt ]] || config=rt
	if [[ $3 != clang ]]; then
		config+=-$3
	elif [[ $2 == "$(built_in "$1")" ]]; then
		config=bench
	fi
	echo "$config"
}

preemption_script() {
	machine_says
	cat <<-'END'
		for impl in rust c; do
			run s2_destroy_time --json --insns --case dense-4k --size 256M --order close-first,sigkill
			run s2_destroy_time --json --insns --case dense-4k --size 64M --guest protected
			run s2_destroy_wait --size 8G --priority higher
		done
		exit $failed
	END
}

# wait_known KERNEL MODE LOG - the table without a guest, whose destroy others wait
# for, cannot be had where EL2 has the tables: protected hosts since Linux 7.
wait_known() {
	[[ $1 != 6.12 && $2 == protected ]] || [[ $(waited c "$3") != - && $(waited rust "$3") != - ]]
}

# one_model KERNEL COMPILER MODEL - its machines. A kernel that cannot be built is
# a line of the table too.
one_model() {
	local config run=$OUT/matrix-preemption.sh what=$1\|$2\|4k\|$3 mode log code reason append
	reason=$(not_offered "$1" "$3")
	[[ -z $reason ]] || { absent "$what|-" "$reason"; return; }
	config=$(config_for "$1" "$3" "$2")
	if ! "$ROOT/scripts/kernel.sh" --kernel "$1" --config "$config" 2>&1 | tee "$run.built" >&2; then
		reason=$(sed -n '$ s/^kernel.sh: //p' "$run.built")
		absent "$what|-" "no kernel: $reason"
		bad+=("$what: $reason")
		return
	fi
	preemption_script > "$run"
	append=$(kunit_parameters 'kvm_s2*')
	[[ $config != dynamic* ]] || append+=" preempt=$3"
	for mode in "${modes[@]:-${PREEMPTION_MODES[@]}}"; do
		log=$OUT/matrix-$1-$config-$3-$mode.log code=0
		say "$1 $2 $3 $mode"
		boot_cell "$1" "$config" "$mode" "$run" "$log" "$append" || code=$?
		booted "$what|$mode" "$code" "$log.console" "$log"
		wait_known "$1" "$mode" "$log" || bad+=("$what|$mode: nothing says who waits")
	done
}

preemption_part() {
	local kernel compiler model
	for kernel in "${kernels[@]:-${KERNELS[@]}}"; do
		for compiler in "${compilers[@]}"; do
			for model in "${models[@]}"; do one_model "$kernel" "$compiler" "$model"; done
		done
	done
}
