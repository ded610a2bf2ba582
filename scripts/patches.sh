#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# What integration does to a kernel tree, as a series of patches for review.

set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/integrate/touched.sh
. "$ROOT/scripts/integrate/touched.sh"
# shellcheck source=scripts/bench/machine.sh
. "$ROOT/scripts/bench/machine.sh"

usage() {
	cat <<EOF_USAGE
Usage: scripts/patches.sh [options]

Writes a git format-patch series for a kernel: helper, algorithm, EL2, glue, tests,
documentation, and a cover letter with the table of a bench. Each patch builds,
and passes the kernel's checkpatch.pl --strict. You sign them off, by the name
that git config has.

  --kernel V    ${KERNELS[*]} (default: one series for each)
  --json FILE   figures for the cover letter (default: what the last make bench of
                that kernel wrote; without any the letter says so)
  --out DIR     where to write, below V (default $OUT/patches)
  --help        this text

Example:
  make bench && make patches && git -C ~/linux am $OUT/patches/7.3/*.patch
EOF_USAGE
}

kernels=("${KERNELS[@]}")
json=
out=$OUT/patches
while (($#)); do
	case $1 in
	--kernel) kernels=("$(value_of "$@")"); one_of kernel "${kernels[0]}" "${KERNELS[@]}"; shift ;;
	--json) json=$(value_of "$@"); [[ -f $json ]] || misuse "$json: no such file"; shift ;;
	--out) out=$(value_of "$@"); shift ;;
	-h | --help) usage; exit ;;
	*) misuse "unknown option '$1'; valid: --kernel --json --out --help" ;;
	esac
	shift
done
ident=$(git -C "$ROOT" var GIT_COMMITTER_IDENT 2> /dev/null) ||
	die "patches are signed off: set user.name and user.email with git config"
email=${ident#*<}
export GIT_AUTHOR_NAME=${ident%% <*} GIT_AUTHOR_EMAIL=${email%%>*}
export GIT_COMMITTER_NAME=$GIT_AUTHOR_NAME GIT_COMMITTER_EMAIL=$GIT_AUTHOR_EMAIL

# paths_of GROUP - its patterns, one a line; message_of - what comes after them.
paths_of() { sed '/^$/,$d' "$ROOT/scripts/patches/$1"; }
message_of() { sed '1,/^$/d' "$ROOT/scripts/patches/$1"; }

# belongs FILE GROUP - by the last pattern that matches; "!" in front excludes.
belongs() {
	local pattern belongs=1
	while read -r pattern; do
		# shellcheck disable=SC2053  # patterns
		if [[ $pattern == !* && $1 == ${pattern#!} ]]; then
			belongs=1
		elif [[ $1 == $pattern ]]; then
			belongs=0
		fi
	done < <(paths_of "$2")
	return "$belongs"
}

# before_tests FILE - as it is before there are tests to build: what they need comes
# last in files of ours, and by lines in the kernel's.
before_tests() {
	local cut=KVM_S2_KUNIT_TEST
	case $1 in
	*/kvm_s2/Kconfig | *.kvm_s2)
		sed -i "/$cut/,\$d" "$1"
		while [[ -s $1 && $(tail -n 1 "$1") =~ ^(#|$) ]]; do sed -i '$d' "$1"; done ;;
	*/Kconfig) sed -i "/$cut/d" "$1" ;;
	esac
}

# add_group GROUP - commits in $tree what it takes from $whole.
add_group() {
	local file
	while read -r file; do
		belongs "$file" "$1" || continue
		mkdir -p "$(dirname "$tree/$file")"
		cp "$whole/$file" "$tree/$file"
		[[ $1 != 4-glue ]] || before_tests "$tree/$file"
	done < <(cd "$whole" && find . -type f | sed 's|^\./||' | sort)
	git -C "$tree" add -A
	git -C "$tree" diff --cached --quiet || message_of "$1" | git -C "$tree" commit -qsF -
}

# The measured table of a series, or what to do to get one.
table() {
	local from=$json
	[[ -n $from || $1 != "${KERNELS[0]}" ]] || from=$OUT/destroy.json
	[[ -n $from ]] || from=$OUT/$1/destroy.json
	if [[ -f $from ]] && grep -q "\"kernel\": \"$1" "$from"; then
		"$S2REPORT" "$from"
	else
		say "no figures of Linux $1 in $from; make bench KERNEL=$1 measures them"
		echo "(not measured)"
	fi
}

write_cover() {
	local letter=$1 series=$2 rest
	rest=$(sed '1,/^\*\*\* BLURB HERE \*\*\*$/d' "$letter")
	sed -i '/^\*\*\* BLURB HERE \*\*\*$/,$d' "$letter"
	sed -i "s|\*\*\* SUBJECT HERE \*\*\*|$(head -n 1 "$ROOT/scripts/patches/cover")|" "$letter"
	{
		sed '1,2d' "$ROOT/scripts/patches/cover"
		echo
		table "$series"
		printf '%s\n' "$rest"
	} >> "$letter"
}

write_series() {
	local series=$1 src group
	src=$("$ROOT/scripts/kernel.sh" --kernel "$series" --print src)
	[[ -f $src/Makefile ]] || die "no source of Linux $series; run scripts/setup.sh --kernel $series"
	tree=$work/$series whole=$work/$series-whole
	copy_touched "$src" "$tree"
	cp -r "$tree" "$whole"
	"$ROOT/scripts/integrate.sh" "$whole"
	git -C "$tree" init -q
	git -C "$tree" add -A
	git -C "$tree" commit -qm "Linux $series"
	for group in "$ROOT"/scripts/patches/[0-9]-*; do add_group "$(basename "$group")"; done
	diff -r --exclude=.git --exclude=.kvm_s2.edits "$tree" "$whole" >&2 || die "some files of the integration are in no patch"

	rm -rf "${out:?}/$series"
	git -C "$tree" format-patch -q --cover-letter -o "$out/$series" \
		--no-signature "$(git -C "$tree" rev-list --max-parents=0 HEAD)"
	write_cover "$out/$series/0000-cover-letter.patch" "$series"
	check_series "$src" "$out/$series"
	say "$(find "$out/$series" -name '*.patch' | wc -l) files in $out/$series"
}

# Not asked about: MAINTAINERS, which has entries for the directories that get new
# files; and the entries of EL2's table of calls, which cannot be in parentheses.
check_series() {
	(cd "$1" && perl scripts/checkpatch.pl --strict --quiet --no-summary \
		--ignore FILE_PATH_CHANGES,COMPLEX_MACRO "$2"/000[1-9]-*.patch) ||
		die "checkpatch.pl --strict has something to say; see above"
}

S2REPORT=$(native s2report s2report)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for series in "${kernels[@]}"; do write_series "$series"; done
