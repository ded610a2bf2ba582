#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# git bisect run with the bench, on a git tree in which the answer is known.

set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage() {
	cat <<EOF_USAGE
Usage: scripts/test-bisect.sh [options]

Makes a git tree of a kernel's source, with commits of which one makes the end of
a VM dearer and one does not compile, lets git bisect run scripts/bench-destroy.sh
look for the first one, and fails unless it is named. Takes one kernel build and
a few incremental ones, 5 GB of disk, and no part in 'make test' for that reason.

  --kernel V    ${KERNELS[*]} (default 6.12)
  --component   integrate the component first, so that Rust is built too
  --keep        leave the git tree in $CACHE/bisect
  --help        this text

Example:
  scripts/test-bisect.sh --component
EOF_USAGE
}

kernel=6.12
component=0
keep=0
while (($#)); do
	case $1 in
	--kernel) kernel=$(value_of "$@"); one_of kernel "$kernel" "${KERNELS[@]}"; shift ;;
	--component) component=1 ;;
	--keep) keep=1 ;;
	-h | --help) usage; exit ;;
	*) misuse "unknown option '$1'; valid: --kernel --component --keep --help" ;;
	esac
	shift
done

tree=$CACHE/bisect
mmu=arch/arm64/kvm/mmu.c
git_tree() {
	git -C "$tree" -c user.name=kvm_s2 -c user.email=kvm_s2@localhost -c core.autocrlf=false \
		-c gc.auto=0 -c core.compression=0 -c core.fsync=none -c advice.detachedHead=false "$@"
}

# commit SUBJECT - what was changed, and prints the commit.
commit() {
	git_tree commit -qam "$1"
	git_tree rev-parse HEAD
}

make_tree() {
	local src
	src=$("$ROOT/scripts/kernel.sh" --kernel "$kernel" --print src)
	[[ -f $src/Makefile ]] || die "no source of Linux $kernel; run scripts/setup.sh --kernel $kernel"
	need_space 5
	say "making a git tree of Linux $kernel"
	rm -rf "$tree"
	cp -r --reflink=auto "$src" "$tree"
	"$ROOT/scripts/integrate.sh" --revert "$tree"
	((!component)) || "$ROOT/scripts/integrate.sh" "$tree"
	git_tree init -q
	# A source package may come with a .gitignore that ignores everything.
	git_tree add -A -f
	git_tree commit -qm "Linux $kernel"
}

# Five milliseconds, which instruction counting makes five million instructions.
plant() {
	sed -i -e '/^void kvm_free_stage2_pgd/,/^}/ s|^\twrite_lock(&kvm->mmu_lock);|\tmdelay(5);\n&|' \
		-e '0,/^#include <linux/ s||#include <linux/delay.h>\n&|' "$tree/$mmu"
	grep -q 'mdelay(5);' "$tree/$mmu" || die "found no place for the regression in $mmu"
}

change() { printf '%s\n' "$1" >> "$tree/$mmu"; }

make_tree
good=$(git_tree rev-parse HEAD)
change '/* harmless */'
commit "a comment" > /dev/null
change '/* harmless, too */'
commit "another comment" > /dev/null
# Half way, so that bisect comes across it.
change 'this is no C'
broken=$(commit "does not compile")
sed -i '/^this is no C$/d' "$tree/$mmu"
commit "compiles again" > /dev/null
plant
culprit=$(commit "five million instructions more")
change '/* the last one */'
bad=$(commit "a last comment")

say "bisecting"
log=$OUT/bisect.log
mkdir -p "$OUT"
git_tree bisect start "$bad" "$good"
git_tree bisect run "$ROOT/scripts/bench-destroy.sh" --tree "$tree" --mode vhe --case empty \
	--ipa 40 --max 2000000 --out "$OUT/bisect" 2>&1 < /dev/null | tee "$log"

git_tree bisect log | grep -q "^# skip: \[$broken\]" ||
	die "the commit that does not compile was not come across, so nothing says it is skipped"
grep -q "^$culprit is the first bad commit" "$log" ||
	die "the wrong commit was named, or none; it is $culprit, and the log is $log"
say "the right commit was named after $(clock $SECONDS): $(git_tree log -1 --format=%s "$culprit")"
((keep)) || rm -rf "$tree" "$CACHE/build/tree-$(cksum <<< "$tree" | cut -d' ' -f1)"
