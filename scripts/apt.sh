# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Packages that are unpacked into the cache and never installed: kernel
# sources and arm64 programs. They come through an apt root of our own, so the
# machine's architectures and package lists stay as they are. Needs lib.sh.

APT_ROOT=$CACHE/apt
BACKPORTS=trixie-backports      # where the newest kernel sources are, for 12 and 13
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

as_root() {
	if ((EUID == 0)); then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		die "needs root for '$*'; run it as root, or install sudo"
	fi
}

update_lists() {
	as_root apt-get -qq update >&2 ||
		die "apt-get update failed; check the network and apt's sources, then run this again"
}

# Runs an apt tool in that root. -c is read last: it overrides the machine's own.
private_apt() {
	local tool=$1
	shift
	"$tool" -c "$APT_ROOT/apt.conf" "$@"
}

write_apt_conf() {
	cat > "$APT_ROOT/apt.conf" <<-END
		Dir::Etc { sourcelist "$APT_ROOT/sources.list"; sourceparts "/dev/null"; };
		Dir::Etc { preferences "/dev/null"; preferencesparts "/dev/null"; };
		Dir::State "$APT_ROOT/state";
		Dir::State::status "$APT_ROOT/state/status";
		Dir::Cache "$APT_ROOT/cache";
		#clear APT::Architectures;
		APT::Architecture "arm64";
		APT::Architectures { "arm64"; };
		Acquire::Languages "none";
		Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
		APT::Sandbox::User "$(id -un)";
		#clear APT::Update;
		#clear DPkg::Post-Invoke;
	END
}

# The archives this machine already uses, as "URI codename" lines. apt is asked,
# so both ways to write its sources are understood, and mirrors stay mirrors.
machine_archives() {
	# shellcheck disable=SC2016  # apt fills these in
	apt-get indextargets --format '$(REPO_URI) $(CODENAME)' \
		'Created-By: Packages' 'Origin: Debian' 'Component: main' | sort -u
}

private_sources() {
	local uri codename
	while read -r uri codename; do
		case $codename in
		"$1")
			printf 'deb [signed-by=%s] %s %s main\n' "$KEYRING" "$uri" "$1"
			printf 'deb [signed-by=%s] %s %s main\n' "$KEYRING" "$uri" "$BACKPORTS" ;;
		"$1-security" | "$1-updates")
			printf 'deb [signed-by=%s] %s %s main\n' "$KEYRING" "$uri" "$codename" ;;
		esac
	done < <(machine_archives) | sort -u
}

# private_apt_update RELEASE - makes the root and fetches its package lists, once per run.
private_apt_update() {
	[[ -z ${APT_FRESH:-} ]] || return 0
	mkdir -p "$APT_ROOT"/state/lists/partial "$APT_ROOT"/cache/archives/partial
	: > "$APT_ROOT/state/status"
	write_apt_conf
	# Small images come without lists, and then nothing is known.
	[[ -n $(private_sources "$1") ]] || update_lists
	private_sources "$1" > "$APT_ROOT/sources.list"
	grep -q " $1 main" "$APT_ROOT/sources.list" ||
		die "apt knows no Debian $1 archive; check /etc/apt/sources.list*"
	private_apt apt-get -qq update >&2 ||
		die "apt could not fetch its lists; check the network and apt's proxy settings"
	APT_FRESH=1
}

# fetch_package PACKAGE[=VERSION] DIR - leaves the .deb in DIR and prints its path.
fetch_package() {
	local debs
	mkdir -p "$2"
	rm -f "$2/${1%%=*}"_*.deb
	(cd "$2" && private_apt apt-get -q download "$1" >&2) || return
	debs=("$2/${1%%=*}"_*.deb)
	printf '%s\n' "${debs[0]}"
}

# The kernel series that can be fetched today, oldest first.
offered_kernels() {
	private_apt apt-cache pkgnames linux-source- |
		sed -n 's/^linux-source-\([0-9]*\.[0-9]*\)$/\1/p' | sort -V
}

# package_version PACKAGE - of what is installed; empty when it is not.
package_version() {
	dpkg-query -W -f '${db:Status-Status} ${Version}' "$1" 2>/dev/null | sed -n 's/^installed //p'
}
