#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Who waits while a stage-2 is destroyed, on a kernel that does not preempt.

set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage() {
	cat <<EOF_USAGE
Usage: scripts/latency.sh [options]

Boots Linux 6.12 with PREEMPT_NONE, destroys a dense in-kernel table under ours
and under upstream's code with another task waiting for the CPU, and shows how
long that task waited. Fails unless the scheduler's need_resched warning, set to
$warn_ms ms, comes for upstream's and never for ours, and unless ours lets a waiting
task of higher priority run within $max_wait_us us.

  --size N      what the table maps (default $size)
  --policies    also compare when to let the scheduler in: in steps, as ours does,
                or after each chunk, each chunk with something in it, each page
  --help        this text

Example:
  scripts/latency.sh --size 16G --policies
EOF_USAGE
}

size=128G
warn_ms=5
max_wait_us=500
policies=0
while (($#)); do
	case $1 in
	--size) size=$(value_of "$@"); shift ;;
	--policies) policies=1 ;;
	-h | --help) usage; exit ;;
	*) misuse "unknown option '$1'; valid: --size --policies --help" ;;
	esac
	shift
done

# What the machine runs. The scheduler prints its warning once in an hour, so the
# side that must not cause one comes first.
waiting_script() {
	cat <<-END
		cd /sys/kernel/debug/sched || exit
		echo LATENCY_WARN > features
		echo $warn_ms > latency_warn_ms
		echo 0 > latency_warn_once
		for impl in rust c; do
			for priority in higher equal; do
				s2_destroy_wait --size $size --impl \$impl --priority \$priority || exit
			done
			echo "# \$impl warned \$(dmesg | grep -c 'need_resched set for')"
		done
	END
}

# One line for each policy and shape: policy shape destroy-ns rescheds stretch-ns.
policy_script() {
	cat <<-'END'
		echo 0 > latency_warn_ms
		module=$(find /lib/modules -name kvm_s2_bench.ko)
		figure() { dmesg | sed -n "s/.*kvm_s2_bench: $1  *\([0-9]*\) .*/\1/p" | tail -n 1; }
		while read -r shape parameters; do
			for policy in steps chunk mapped-chunk page; do
				insmod $module ipa_bits=48 $parameters policy=$policy 2> /dev/null
				echo "policy $policy $shape $(figure destroy) $(figure rescheds) $(figure 'longest stretch')"
			done
		done <<-SHAPES
			empty size_mib=0
			sparse size_mib=268435456 stride_mib=524288
			dense size_mib=16384
		SHAPES
	END
}

show_waits() {
	{
		echo 'destroyed by,waiting task,worst wait,destroy took,longest stretch'
		sed -n 's/^{/{,/; s/^{//p' "$1" | while read -r row; do
			key() { sed -n "s/.*\"$1\":\"\{0,1\}\([^,\"}]*\).*/\1/p" <<< "$row"; }
			echo "$(key impl),$(key priority) priority,$(us "$(key worst_wait_ns)"),$(us "$(key destroy_ns)"),$(us "$(key max_stretch_ns)")"
		done
	} | column -t -s,
}

show_policies() {
	{
		echo 'shape,scheduler let in,instructions,chances,longest stretch'
		sed -n 's/^policy //p' "$1" | while read -r policy shape destroy rescheds stretch; do
			echo "$shape,$policy,$destroy,$rescheds,$stretch"
		done
	} | column -t -s,
}

us() { [[ $1 == null ]] && echo - || echo "$(($1 / 1000)) us"; }

kernel_sh=("$ROOT/scripts/kernel.sh" --kernel 6.12)
"${kernel_sh[@]}"
mkdir -p "$OUT"
script=$(mktemp)
trap 'rm -f "$script"' EXIT
waiting_script > "$script"
((!policies)) || policy_script >> "$script"
initrd=$("$ROOT/scripts/initramfs.sh" --run "$script" --kernel 6.12 --out "$OUT/latency.cpio")
result=$OUT/latency.txt
"$ROOT/scripts/qemu.sh" --mode vhe --image "$("${kernel_sh[@]}" --print image)" --initrd "$initrd" \
	--log "$OUT/latency-console.log" --timeout 1800 --expect 'WARNING: .*kernel/sched/' > "$result" || {
	cat "$result"
	die "the machine did not do as it should; its console is $OUT/latency-console.log"
}

show_waits "$result"
((!policies)) || { echo; show_policies "$result"; }
warned() { sed -n "s/^# $1 warned //p" "$result"; }
[[ $(warned rust) == 0 ]] || die "ours kept a task waiting for more than $warn_ms ms"
[[ $(warned c) == 1 ]] || die "upstream's did not cause the warning, so its absence proves nothing"
worst=$(sed -n 's/.*"impl":"rust".*"priority":"higher".*"worst_wait_ns":\([0-9]*\).*/\1/p' "$result")
[[ $worst =~ ^[0-9]+$ ]] || die "how long a task waits for ours was not measured"
((worst <= max_wait_us * 1000)) ||
	die "ours kept a task of higher priority waiting for $worst ns, $max_wait_us us are allowed"
say "no warning at $warn_ms ms from ours, one from upstream's; worst wait $worst ns"
