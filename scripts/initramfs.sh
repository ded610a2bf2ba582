#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# The user space of a booted machine: a cpio of static arm64 programs.

set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage() {
	cat <<EOF_USAGE
Usage: scripts/initramfs.sh --run FILE [options]

Packs busybox, bash, the selftests, the modules of a kernel and the script FILE,
which /init runs as /run.sh; its exit code becomes that of scripts/qemu.sh.
Prints the path of the cpio.

  --run FILE      the script to run in the guest
  --kernel V      take the modules of this kernel: ${KERNELS[*]} (default ${KERNELS[0]})
  --config C      ... in this configuration: ${CONFIGS[*]} (default bench)
  --add FILE[:AS] also pack FILE, as /AS or as /bin/NAME (may be repeated)
  --no-selftests  leave the selftests out
  --out CPIO      where to write (default $OUT/initramfs.cpio)
  --help          this text

Example:
  echo 'uname -a; cat /proc/cmdline' > hello.sh
  scripts/qemu.sh --mode nvhe --image "\$(scripts/kernel.sh --print image)" \\
      --initrd "\$(scripts/initramfs.sh --run hello.sh)"
EOF_USAGE
}

kernel=${KERNELS[0]}
config=bench
run=
selftests=1
added=()
out=$OUT/initramfs.cpio
while (($#)); do
	case $1 in
	--run) run=$(value_of "$@"); shift ;;
	--kernel) kernel=$(value_of "$@"); one_of kernel "$kernel" "${KERNELS[@]}"; shift ;;
	--config) config=$(value_of "$@"); one_of config "$config" "${CONFIGS[@]}"; shift ;;
	--add) added+=("$(value_of "$@")"); shift ;;
	--no-selftests) selftests=0 ;;
	--out) out=$(value_of "$@"); shift ;;
	-h | --help) usage; exit ;;
	*) misuse "unknown option '$1'; valid: --run --kernel --config --add --no-selftests --out --help" ;;
	esac
	shift
done
[[ -n $run ]] || misuse "--run FILE is needed"
for file in "$run" "${added[@]%%:*}"; do [[ -f $file ]] || misuse "$file: no such file"; done

add_selftests() {
	local built programs
	built=$(cd "$ROOT" && arm64_cargo build --release -p s2-selftests --quiet --message-format json-render-diagnostics) ||
		die "the selftests do not build for arm64"
	mapfile -t programs < <(sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' <<< "$built")
	cp "${programs[@]}" "$top/bin/"
}

add_modules() {
	local build release
	build=$("$ROOT/scripts/kernel.sh" --kernel "$kernel" --config "$config" --print build)
	release=$(cat "$build/include/config/kernel.release" 2>/dev/null) || return 0
	mkdir -p "$top/lib/modules/$release"
	find "$build" -name '*.ko' -exec cp {} "$top/lib/modules/$release/" \;
}

write_init() {
	cat > "$top/init" <<-'END'
		#!/bin/sh
		# SPDX-License-Identifier: GPL-2.0
		/bin/busybox --install -s /bin
		export PATH=/bin HOME=/ TERM=dumb
		mount -t proc proc /proc
		# on DIR TYPE - mounts what this kernel has.
		on() {
			grep -qw "$2" /proc/filesystems || return
			mkdir -p "$1"
			mount -t "$2" "$2" "$1"
		}
		on /sys sysfs
		on /dev devtmpfs
		on /sys/kernel/debug debugfs
		on /sys/kernel/tracing tracefs
		on /sys/fs/cgroup cgroup2
		on /tmp tmpfs
		on /dev/shm tmpfs
		on /dev/hugepages hugetlbfs
		# From here on only trouble may break into the lines of a program.
		dmesg -n 5
		/bin/bash /run.sh
		code=$?
		# kmemleak looks on request only, and wants a second look to be sure.
		if [ -w /sys/kernel/debug/kmemleak ]; then
			echo scan > /sys/kernel/debug/kmemleak
			sleep 6
			echo scan > /sys/kernel/debug/kmemleak
			while read -r line; do
				echo "kmemleak: $line" > /dev/kmsg
			done < /sys/kernel/debug/kmemleak
		fi
		echo
		echo "KVM_S2_EXIT $code"
		poweroff -f
	END
	chmod +x "$top/init"
}

top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
mkdir -p "$top"/{bin,dev,proc,sys,tmp,etc,lib/modules} "$(dirname "$out")"
cp "$ARM64/bin/busybox" "$top/bin/"
cp "$ARM64/bin/bash-static" "$top/bin/bash"
ln -s busybox "$top/bin/sh"
cp "$run" "$top/run.sh"
add_modules
((!selftests)) || add_selftests
for file in "${added[@]}"; do
	as=bin/$(basename "$file")
	[[ $file != *:* ]] || as=${file#*:}
	install -D "${file%%:*}" "$top/$as"
done
write_init
(cd "$top" && find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0 --reproducible) > "$out.part"
mv "$out.part" "$out"
printf '%s\n' "$out"
