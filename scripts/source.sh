# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Kernel source trees in the cache. Needs lib.sh and apt.sh.

# Where the tree of a series is: the integrated one, or with "vanilla" the untouched one.
source_dir() { printf '%s\n' "$CACHE/src/linux-$1${2:+-$2}"; }

source_ready() { [[ -f $(source_dir "$@")/Makefile ]]; }

# unpack_source SERIES DIR - all or nothing: a tree is moved into place when it is whole.
unpack_source() {
	local series=$1 dir=$2 deb
	need_space 4
	say "fetching linux-source-$series"
	deb=$(fetch_package "linux-source-$series" "$CACHE/src") ||
		die "apt could not download linux-source-$series; check the network and run this again"
	say "unpacking $(basename "$deb")"
	rm -rf "$dir.part"
	mkdir -p "$dir.part"
	dpkg-deb --fsys-tarfile "$deb" | tar xO "./usr/src/linux-source-$series.tar.xz" |
		xz -dT0 | tar x -C "$dir.part" --strip-components=1
	rm -f "$deb"
	rm -rf "$dir"
	mv "$dir.part" "$dir"
}

# Offered series that the integration knows, nearest to SERIES first; a later one
# wins over an earlier one.
nearest_kernels() {
	local major=${1%.*} minor=${1#*.}
	offered_kernels | grep -xF -f <("$ROOT/scripts/integrate.sh" --list) | awk -F. -v M="$major" -v m="$minor" '
		{ d = ($1 - M) * 1000 + ($2 - m); print (d < 0 ? -2 * d + 1 : 2 * d), $0 }' |
		sort -n | cut -d' ' -f2
}

# fetch_source RELEASE SERIES [vanilla] - when the archive has dropped SERIES,
# takes the nearest one that the integration accepts and lets SERIES stand for it.
fetch_source() {
	local release=$1 series=$2 flavour=${3:-} near dir
	dir=$(source_dir "$series" "$flavour")
	private_apt_update "$release"
	if offered_kernels | grep -qxF "$series"; then
		unpack_source "$series" "$dir"
		return
	fi
	say "Linux $series is no longer offered; offered are: $(offered_kernels | xargs)"
	for near in $(nearest_kernels "$series"); do
		dir=$(source_dir "$near" "$flavour")
		[[ -f $dir/Makefile ]] || unpack_source "$near" "$dir"
		if "$ROOT/scripts/integrate.sh" --check "$dir" >&2; then
			say "using Linux $near in its place"
			ln -sfn "$(basename "$dir")" "$(source_dir "$series" "$flavour")"
			return
		fi
		say "the integration does not accept Linux $near"
	done
	die "the integration takes none of them; a newer version of this project may"
}
