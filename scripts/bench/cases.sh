# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# What the bench measures, and how the measured machine is told. Sourced.
# shellcheck disable=SC2034,SC2154  # variables of bench-destroy.sh

CASES=(empty 1m dense-4k dense-2m scattered sparse)
BACKINGS=(4k thp hugetlb kernel)
ORDERS=(close-first unmap-first sigkill)
GUESTS=(normal protected)
METRICS=(destroy_insns insns_per_page close_insns unmap_insns destroy_ns close_ns unmap_ns
	tables_freed hypercalls tlbis rescheds max_stretch_insns max_el2_insns leaked atomics
	helper_calls table_bytes)

# Lines of: case size IPA-bits backing order guest. Backing "kernel" is a table
# without a guest, built by the bench module: as large as one likes, and for
# "sparse" one page in every 512 GiB of what fits above the start of RAM.
ordinary_cases() {
	local guest=256M large='16G 128G' size
	((!quick)) || { guest=64M; large=8G; }
	cat <<-END
		empty     -     40  4k       close-first  normal
		empty     -     48  4k       close-first  normal
		1m        1M    48  4k       close-first  normal
		dense-4k  $guest  40  4k       close-first  normal
		dense-4k  $guest  40  4k       unmap-first  normal
		dense-4k  $guest  40  4k       sigkill      normal
		dense-2m  256M  40  thp      close-first  normal
		dense-2m  256M  40  hugetlb  close-first  normal
		dense-4k  1G    40  kernel   close-first  none
		dense-2m  128G  40  kernel   close-first  none
		sparse    255T  48  kernel   close-first  none
	END
	for size in $large; do echo dense-4k "$size" 40 kernel close-first none; done
}

# A protected host always takes the widest addresses, and its mappings are
# kept in a tree that only a real guest fills.
protected_cases() {
	local guest=256M
	((!quick)) || guest=64M
	cat <<-END
		empty     -     48  4k  close-first  normal
		1m        1M    48  4k  close-first  normal
		dense-4k  $guest  48  4k  close-first  normal
		dense-4k  $guest  48  4k  unmap-first  normal
		dense-4k  $guest  48  4k  sigkill      normal
		scattered 64M  48  4k  close-first  normal
		dense-4k  64M  48  4k  close-first  protected
		dense-4k  64M  48  4k  sigkill      protected
	END
}

# host_walks MODE - whether the host has the tables of guests, and not EL2. Until
# Linux 7 a protected host has them too.
host_walks() { [[ $1 != protected || ${release:-$kernel} == [0-6].* ]]; }

chosen() { [[ -z $1 || $1 == "$2" ]]; }

# cases_of MODE - the lines left by --case, --backing, --order and --guest, with
# --size and --ipa put in. What becomes equal by that is run once.
cases_of() {
	local name size ipa backing order guest
	if host_walks "$1"; then ordinary_cases; else protected_cases; fi |
		while read -r name size ipa backing order guest; do
			chosen "$only_case" "$name" || continue
			chosen "$only_backing" "$backing" || continue
			chosen "$only_order" "$order" || continue
			chosen "$only_guest" "$guest" || continue
			[[ -z $set_size || ($name != dense-* && $name != scattered) ]] || size=$set_size
			echo "$name $size ${set_ipa:-$ipa} $backing $order $guest"
		done | awk '!seen[$0]++'
}

# Those that do without the component and its module.
real_guest_cases_of() { cases_of "$1" | grep -v ' kernel ' || true; }

# run_script IMPLS FLAGS - reads case lines, writes what the machine is to run.
# Its console then carries rows ("{..."), KTAP verdicts, and marks ("# run", "# fail").
run_script() {
	local impls=$1 flags=$2 name size ipa backing order guest impl options
	cat <<-END
		failed=0
		row() {
			local label=\$1 code=0
			shift
			echo "# run \$label"
			s2_destroy_time --json $flags "\$@" || code=\$?
			# 4 is "skipped", and the verdict has said why.
			((code == 0 || code == 4)) && return
			echo "# fail \$label: s2_destroy_time ended with \$code"
			failed=1
		}
		# The first VM of a boot also waits for what the boot left behind.
		s2_destroy_time --json $flags --case empty > /dev/null 2>&1
	END
	while read -r name size ipa backing order guest; do
		options="--case $name --ipa $ipa --backing $backing --order $order"
		[[ $size == - ]] || options+=" --size $size"
		[[ $guest == none ]] || options+=" --guest $guest"
		[[ $backing != hugetlb ]] || options+=" --setup"
		for impl in $impls; do
			echo "row '$impl: $name $size, IPA $ipa, $backing $order $guest' --impl $impl $options"
		done
	done
	echo "exit \$failed"
}
