# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# A kernel tree as it is, built the smallest way that can run guests. This is
# what a bisect steps through, so the build directory stays: each step compiles
# only what changed. Needs lib.sh, machine.sh and the variables of bench-destroy.sh.
# shellcheck disable=SC2034,SC2154

has_component() { grep -qs KVM_S2_RUST "$tree/arch/arm64/kvm/Kconfig"; }

# Rust is built only where there is something to build with it.
tree_fragments() {
	if has_component; then
		cat "$ROOT/scripts/config/base.config" "$ROOT/scripts/config/component.config"
	else
		grep -v '^CONFIG_RUST=' "$ROOT/scripts/config/base.config"
	fi
}

# Options differ from commit to commit; what must be there is KVM itself.
tree_configure() {
	tree_fragments > "$tree_build/.fragment"
	kbuild "$tree" "$tree_build" -s KCONFIG_ALLCONFIG="$tree_build/.fragment" allnoconfig &&
		grep -qx CONFIG_KVM=y "$tree_build/.config"
}

prepare_tree() {
	local log
	[[ -f $tree/arch/arm64/kvm/mmu.c ]] || misuse "--tree $tree is not a Linux tree with arm64 KVM"
	tree_build=$CACHE/build/tree-$(cksum <<< "$tree" | cut -d' ' -f1)
	log=$tree_build/build.log
	image=$tree_build/arch/arm64/boot/Image
	need_space 4
	"$ROOT/scripts/setup.sh" || die "the machine is not set up to build kernels"
	mkdir -p "$tree_build"
	say "building $tree (log: $log)"
	tree_configure > "$log" 2>&1 || tree_failed "does not configure with KVM" "$log"
	kbuild "$tree" "$tree_build" -j"$(nproc)" Image >> "$log" 2>&1 || tree_failed "does not build" "$log"
	release=$(cat "$tree_build/include/config/kernel.release")
	say "$(clock $SECONDS) Linux $release is built"
	# Without the component there is no choice to make.
	has_component || impls=current
}

tree_failed() {
	tail -n 15 "$2" >&2
	die "$tree $1; all of it is in $2"
}
