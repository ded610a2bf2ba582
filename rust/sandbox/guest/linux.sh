# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash disable=SC2086,SC2154
#
# A Linux guest inside the emulated arm64 host; part of life.sh.

echo "# a Linux guest and its devices"
export SANDBOX_PROGRAM=/bin/sandbox SANDBOX_GUEST_KERNEL=/guest/Image SANDBOX_PATIENCE=600
it linux --nocapture >it.log 2>&1 || {
	cat it.log
	exit 1
}
cat it.log
# A skipped test passes too.
if grep -q "SKIP it" it.log; then exit 1; fi

echo "# a Linux guest and its clones"
rm -f console
dd if=/dev/zero of=disk bs=4096 count=16 2>/dev/null
sandbox run --keep $api --memory 96M --cpus 2 --kernel /guest/Image \
	--initramfs /guest/initramfs --cmdline "console=ttyS0 quiet panic=-1" \
	--disk disk --vsock 3,/tmp/vsock --console-file console &
await "guest: up, 2 cpus"
await "disk ok"
await "tick 5"
echo "booted: $(grep 'guest: up' console), $(grep disk console)"
sandbox pause $api --snapshot snapshot
before=$(grep -c tick console)
sandbox restore $api --snapshot snapshot --resume
for _ in $(seq 300); do
	if [ "$(grep -c tick console)" -gt $((before + 2)) ]; then break; fi
	sleep 1
done
[ "$(grep -c tick console)" -gt $((before + 2)) ]
[ "$(grep -c 'guest: up' console)" = 1 ]
echo "went on after a pause and a restore: $(tail -n 1 console)"
sandbox pause $api --snapshot snapshot
sandbox shutdown $api
wait
sandbox bench clone --snapshot snapshot --dir /tmp --count 4 --rounds 1 --alone 1
