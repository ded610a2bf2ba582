#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# The package for arm64 hosts, tried on an emulated one that has nothing else.

set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage() {
	cat <<EOF_USAGE
Usage: scripts/test-package.sh [options]

Makes the package, unpacks it in a booted machine as if that were the host, runs
its tests and its bench there, and looks for the figures and what they say of the
machine.

  --kernel V     ${KERNELS[*]} (default ${KERNELS[0]})
  --config C     ${CONFIGS[*]} (default bench); vanilla is without the component
  --image IMAGE  boot this kernel instead of building one
  --help         this text

Example:
  scripts/test-package.sh --config vanilla
EOF_USAGE
}

kernel=${KERNELS[0]}
config=bench
image=
while (($#)); do
	case $1 in
	--kernel) kernel=$(value_of "$@"); one_of kernel "$kernel" "${KERNELS[@]}"; shift ;;
	--config) config=$(value_of "$@"); one_of config "$config" "${CONFIGS[@]}"; shift ;;
	--image) image=$(value_of "$@"); shift ;;
	-h | --help) usage; exit ;;
	*) misuse "unknown option '$1'; valid: --kernel --config --image --help" ;;
	esac
	shift
done

if [[ -z $image ]]; then
	"$ROOT/scripts/kernel.sh" --kernel "$kernel" --config "$config"
	image=$("$ROOT/scripts/kernel.sh" --kernel "$kernel" --config "$config" --print image)
fi
mkdir -p "$OUT"
package=$("$ROOT/scripts/package.sh")
script=$(mktemp)
trap 'rm -f "$script"' EXIT
cat > "$script" <<'END'
set -e
# What every host has, and a machine of busybox has not.
mkdir -p /usr/bin
ln -s /bin/busybox /usr/bin/env
ln -s /proc/self/fd /dev/fd
cd /tmp
tar xzf /package.tar.gz
cd kvm_s2-package
./run_kselftest.sh -l
./run_kselftest.sh
scripts/bench-destroy.sh --local --case 1m --out results
scripts/bench-destroy.sh --local --case dense-4k --size 16M --out results
for fact in cpu kernel governor mode component; do
	grep "\"$fact\": \"." results/destroy.json
done
grep -q '_ns": [0-9]' results/destroy.json
if [ -e /sys/module/kvm_s2 ]; then
	grep -q '"impl": "rust"' results/destroy.json
	kvm_s2/s2_destroy_wait --size 1G --impl rust | grep '"worst_wait_ns":[0-9]'
else
	grep '"component": "absent"' results/destroy.json
	! grep '"impl": "rust"' results/destroy.json
fi
END
initrd=$("$ROOT/scripts/initramfs.sh" --run "$script" --no-selftests --kernel "$kernel" \
	--config "$config" --add "$package:package.tar.gz" --out "$OUT/package.cpio")
# Two CPUs and time that passes, as on a host; no figure is judged here.
"$ROOT/scripts/qemu.sh" --mode nvhe --image "$image" --initrd "$initrd" --cpus 2 --no-icount \
	--timeout 2400 --log "$OUT/package-console.log"
