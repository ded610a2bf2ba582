#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# One archive for an arm64 host: static selftests, the bench, and how to use them.

set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage() {
	cat <<EOF_USAGE
Usage: scripts/package.sh [options]

Packs what measures the end of KVM guests on an arm64 host, with or without this
project's component in its kernel, and prints the path of the archive.

  --out FILE    where to write (default $OUT/kvm_s2-package.tar.gz)
  --help        this text

Example:
  scripts/package.sh && scp $OUT/kvm_s2-package.tar.gz root@altra:
EOF_USAGE
}

out=$OUT/kvm_s2-package.tar.gz
while (($#)); do
	case $1 in
	--out) out=$(value_of "$@"); shift ;;
	-h | --help) usage; exit ;;
	*) misuse "unknown option '$1'; valid: --out --help" ;;
	esac
	shift
done

# programs PACKAGE - the paths of its static arm64 programs, built.
programs() {
	local built
	built=$(cd "$ROOT" && arm64_cargo build --release -p "$1" --quiet --message-format json-render-diagnostics) ||
		die "$1 does not build for arm64"
	sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' <<< "$built"
}

"$ROOT/scripts/setup.sh"
name=kvm_s2-package
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
mkdir -p "$top/$name"/{kvm_s2,scripts/bench} "$(dirname "$out")"
cd "$top/$name"

programs s2-selftests | xargs -I{} cp {} kvm_s2/
programs s2report | xargs -I{} cp {} kvm_s2/
cp "$ROOT"/selftests/{settings,config} kvm_s2/
# As the kernel's own "make install" of kselftests lays it out.
cp "$ROOT/selftests/run_kselftest.sh" .
read -ra tests < <(sed -n 's/^TEST_PROGS := //p' "$ROOT/selftests/Makefile")
for test in "${tests[@]}"; do
	[[ -x kvm_s2/$test ]] || die "selftests/Makefile names $test, which is not built"
	echo "kvm_s2:$test"
done > kselftest-list.txt

cp "$ROOT/scripts"/{lib.sh,bench-destroy.sh} scripts/
cp "$ROOT/scripts/bench"/*.sh scripts/bench/
cp "$ROOT/selftests/PACKAGE.md" README.md
cp -r "$ROOT/LICENSES" .
git -C "$ROOT" describe --always --dirty > VERSION 2> /dev/null || echo unknown > VERSION

tar -C "$top" --sort=name --owner=0 --group=0 --numeric-owner -czf "$out.part" "$name"
mv "$out.part" "$out"
printf '%s\n' "$out"
