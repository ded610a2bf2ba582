#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Boots one emulated arm64 host with EL2 and watches its console.

set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage() {
	cat <<EOF_USAGE
Usage: scripts/qemu.sh --mode MODE --image IMAGE --initrd CPIO [options]

Boots an emulated arm64 host, passes on what its programs print, and exits with
the code of the script in the initramfs. A WARNING, BUG, Oops, sanitizer, lockdep
or kmemleak report on the console makes that 1; a machine that hangs, 124.

  --mode MODE     ${MODES[*]}
  --image IMAGE   kernel image (scripts/kernel.sh --print image)
  --initrd CPIO   user space (scripts/initramfs.sh)
  --mem SIZE      memory of the machine (default 4G)
  --cpus N        (default 1; more than one needs --no-icount)
  --append ARGS   further kernel parameters
  --timeout SEC   real time until the boot counts as hung (default 600)
  --log FILE      keep the whole console here (default $OUT/console-MODE.log)
  --expect REGEX  a WARNING line that matches is wanted, not trouble, and a boot
                  without one fails
  --no-icount     let the clock run freely instead of counting instructions
  --console       show the kernel's own lines too
  --quiet         no progress
  --help          this text

Example:
  scripts/qemu.sh --mode protected --image "\$(scripts/kernel.sh --print image)" \\
      --initrd "\$(scripts/initramfs.sh --run hello.sh)"
EOF_USAGE
}

mode='' image='' initrd='' append='' log='' expect=''
mem=4G
cpus=1
limit=600
console=0
quiet=0
icount=(-icount 'shift=0,sleep=off')
while (($#)); do
	case $1 in
	--mode) mode=$(value_of "$@"); one_of mode "$mode" "${MODES[@]}"; shift ;;
	--image) image=$(value_of "$@"); shift ;;
	--initrd) initrd=$(value_of "$@"); shift ;;
	--mem) mem=$(value_of "$@"); shift ;;
	--cpus) cpus=$(value_of "$@"); shift ;;
	--append) append=$(value_of "$@"); shift ;;
	--timeout) limit=$(value_of "$@"); shift ;;
	--log) log=$(value_of "$@"); shift ;;
	--expect) expect=$(value_of "$@"); shift ;;
	--no-icount) icount=() ;;
	--console) console=1 ;;
	--quiet) quiet=1 ;;
	-h | --help) usage; exit ;;
	*) misuse "unknown option '$1'; valid: --mode --image --initrd --mem --cpus --append" \
		"--timeout --log --expect --no-icount --console --quiet --help" ;;
	esac
	shift
done
[[ -n $mode && -n $image && -n $initrd ]] || misuse "--mode, --image and --initrd are needed"
for file in "$image" "$initrd"; do [[ -f $file ]] || misuse "$file: no such file"; done
[[ $limit =~ ^[0-9]+$ && $cpus =~ ^[1-9][0-9]*$ ]] || misuse "--timeout and --cpus take a number"
((cpus == 1 || ${#icount[@]} == 0)) || misuse "--cpus $cpus needs --no-icount"
command -v qemu-system-aarch64 >/dev/null || die "no qemu-system-aarch64; run scripts/setup.sh"
log=${log:-$OUT/console-$mode.log}
mkdir -p "$(dirname "$log")"

stamp='\[ *[0-9]+\.[0-9]{6}\]'
# What the kernel says when something is wrong. Looked for behind its time stamp
# only, which may come in the middle of a program's line.
trouble='WARNING:|BUG:|BUG at|Oops|Internal error|Unable to handle kernel|Kernel panic'
trouble+='|KASAN|UBSAN|possible (circular|recursive) locking|suspicious RCU usage'
trouble+='|unreferenced object|new suspected memory leaks|refcount_t:|bad page|Bad page'
trouble+='|detected stall|hung task|blocked for more than|soft lockup|[Hh]yp (panic|BUG|WARN)'

parameters() {
	local words=(console=ttyAMA0 printk.time=1 printk.devkmsg=on panic=-1 oops=panic)
	[[ $mode == vhe ]] || words+=("kvm-arm.mode=$mode")
	# QEMU before 8.1 loses EL2's own TLB invalidations in hVHE, so that what EL2
	# clears is not what the host gets back. Without hVHE they work.
	[[ $mode != protected ]] || words+=(arm64_sw.hvhe=0 id_aa64mmfr1.vh=0)
	printf '%s' "${words[*]}${append:+ $append}"
}

# The device tree carries no random seed: two runs of one image are the same run.
boot() {
	exec qemu-system-aarch64 -machine virt,virtualization=on,gic-version=3,dtb-randomness=off \
		-cpu max -smp "$cpus" -m "$mem" -nic none -display none -serial stdio -monitor none \
		-no-reboot "${icount[@]}" -kernel "$image" -initrd "$initrd" \
		-append "$(parameters)" < /dev/null 2>&1
}

code=''
troubles=0
expected=0
console_line() {
	local line=${1%$'\r'}
	printf '%s\n' "$line" >> "$log"
	if [[ $line =~ $stamp.*($trouble) ]]; then
		if [[ -n $expect && $line =~ $expect ]]; then
			expected=$((expected + 1))
		else
			troubles=$((troubles + 1))
		fi
	fi
	if [[ $line =~ ^$stamp ]]; then
		((!console)) || printf '%s\n' "$line"
	elif [[ $line == 'KVM_S2_EXIT '* ]]; then
		code=${line#KVM_S2_EXIT }
	elif [[ -n $line ]]; then
		printf '%s\n' "$line"
	fi
}

progress() {
	((!quiet)) && [[ -t 2 ]] || return 0
	printf '\r\033[K%s: %s %s, %s console lines\r' "$PROGRAM" "$mode" "$(clock $SECONDS)" "$(wc -l < "$log")" >&2
}

# Reads the console until the machine ends; returns 124 when its time is up.
watch() {
	local part line='' status
	while :; do
		status=0
		IFS= read -r -t 1 -u "$machine" part || status=$?
		line+=$part
		if ((status == 0)); then
			console_line "$line"
			line=''
		elif ((status <= 128)); then
			[[ -z $line ]] || console_line "$line"
			return 0
		fi
		((SECONDS < limit)) || return 124
		((status == 0)) || progress
	done
}

tail_of_console() {
	say "--- the last lines of the console (all of it: $log):"
	tail -n "$1" "$log" >&2
}

: > "$log"
SECONDS=0
exec {machine}< <(boot)
pid=$!
trap 'kill "$pid" 2>/dev/null || true' EXIT
hung=0
watch || hung=$?
[[ $quiet == 1 || ! -t 2 ]] || printf '\r\033[K' >&2

if ((troubles)); then
	say "the kernel reports trouble ($mode):"
	grep -E -m 1 -A 40 "$stamp.*($trouble)" "$log" >&2
	say "$troubles such lines; the whole console is in $log"
	exit 1
elif ((hung)); then
	say "the machine ($mode) did not finish within $limit s"
	tail_of_console 25
	exit 124
elif [[ -n $expect ]] && ((!expected)); then
	say "the machine ($mode) did not warn as it should: $expect"
	exit 1
elif [[ ! $code =~ ^[0-9]+$ ]]; then
	say "the machine ($mode) stopped without reporting a result"
	tail_of_console 25
	exit 1
fi
exit "$code"
