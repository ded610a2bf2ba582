#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Brings a Debian 12 or 13 machine to where everything here builds and boots.

set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/apt.sh
. "$ROOT/scripts/apt.sh"
# shellcheck source=scripts/source.sh
. "$ROOT/scripts/source.sh"

usage() {
	cat <<EOF_USAGE
Usage: scripts/setup.sh [options]

Installs what is missing to build arm64 kernels with Rust and to boot them, and
fetches kernel sources. Does nothing when all is there. Run it as yourself: it
asks sudo only for the packages. Everything else goes to
  $CACHE   (KVM_S2_CACHE moves it)

  --kernel V      also fetch the sources of V: ${KERNELS[*]} (may be repeated)
  --check         change nothing, list what is missing; exit 1 when something is
  --allow-remove  let apt remove packages that conflict with the new ones
  --help          this text

Examples:
  scripts/setup.sh --check
  scripts/setup.sh --kernel 7.3 --kernel 6.12
EOF_USAGE
}

check=0
remove=--no-remove
kernels=()
while (($#)); do
	case $1 in
	--kernel)
		one_of kernel "$(value_of "$@")" "${KERNELS[@]}"
		kernels+=("$2")
		shift ;;
	--check) check=1 ;;
	--allow-remove) remove= ;;
	-h | --help) usage; exit ;;
	*) misuse "unknown option '$1'; valid: --kernel --check --allow-remove --help" ;;
	esac
	shift
done

check_system() {
	local hint="supported are Debian 12 (bookworm) and 13 (trixie) on amd64"
	[[ -r /etc/os-release ]] || die "no /etc/os-release; $hint"
	# shellcheck source=/dev/null
	. /etc/os-release
	[[ $(uname -m) == x86_64 ]] ||
		die "this machine is $(uname -m); $hint. On an arm64 host with KVM use 'scripts/bench-destroy.sh --local'"
	case ${ID:-}:${VERSION_CODENAME:-} in
	debian:bookworm) rust=web ;;
	debian:trixie) rust= ;;
	*) die "this is ${PRETTY_NAME:-an unknown system}; $hint" ;;
	esac
	release=$VERSION_CODENAME
}

# "package reason" lines. bookworm's own rustc is too old for the kernel; the
# newer one it carries for browsers has "-web" in its package names.
wanted_packages() {
	local reason package web=${rust:+-$rust}
	while read -r reason package; do
		for package in $package; do printf '%s %s\n' "$package" "$reason"; done
	done <<-END
		kernel-compiler clang-$LLVM_VERSION lld-$LLVM_VERSION llvm-$LLVM_VERSION
		kernel-Rust rustc$web rust$web-src libstd-rust$web-dev
		kernel-bindings libclang-$LLVM_VERSION-dev
		kernel-build make gcc libc6-dev flex bison bc perl libelf-dev libssl-dev rsync kmod xz-utils
		downloads debian-archive-keyring ca-certificates
		arm64-programs gcc-aarch64-linux-gnu libc6-dev-arm64-cross
		initramfs cpio
		emulation qemu-system-arm
		checks shellcheck
		patches git patch
	END
	[[ -n $cargo ]] || printf '%s cargo-%s-or-newer\n' "cargo$web" "$RUST_FLOOR" \
		"rustfmt$web" "$RUST_FLOOR" "rust$web-clippy" "$RUST_FLOOR"
}

missing_packages() {
	local package reason
	wanted_packages | while read -r package reason; do
		[[ -n $(package_version "$package") ]] || printf '%s %s\n' "$package" "$reason"
	done
}

install_packages() {
	local names
	mapfile -t names < <(cut -d' ' -f1 <<< "$1")
	say "installing ${#names[@]} packages; what for:"
	awk '{ why[$2] = why[$2] " " $1 } END { for (w in why) printf "  %-22s%s\n", w, why[w] }' <<< "$1" | sort >&2
	update_lists
	# shellcheck disable=SC2086  # empty means no option
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y $remove \
		--no-install-recommends install "${names[@]}" >&2 ||
		die "apt-get could not install them (its reason is above). When it would have to" \
			"remove a conflicting package, --allow-remove lets it"
}

# The arm64 std must be of rustc's very version, down to the package revision.
rust_version() { package_version "rustc${rust:+-$rust}"; }

std_ready() { [[ -n $(rust_version) && $(cat "$SYSROOT/version" 2>/dev/null) == "$(rust_version)" ]]; }

fetch_std() {
	local package=libstd-rust${rust:+-$rust}-dev deb host
	say "fetching the arm64 std of rustc $(rust_version)"
	private_apt_update "$release"
	if ! deb=$(fetch_package "$package=$(rust_version)" "$ARM64"); then
		say "the archive has moved on from that version; updating rustc"
		install_packages "$(wanted_packages | grep kernel-Rust)"
		deb=$(fetch_package "$package=$(rust_version)" "$ARM64") ||
			die "no $package of version $(rust_version) for arm64 in the archive"
	fi
	host=$("$RUSTC" -vV | sed -n 's/^host: //p')
	rm -rf "$SYSROOT"
	mkdir -p "$SYSROOT/lib/rustlib"
	dpkg-deb --fsys-tarfile "$deb" |
		tar x -C "$SYSROOT/lib/rustlib" --strip-components=4 "./usr/lib/rustlib/$ARM64_TARGET"
	ln -s "/usr/lib/rustlib/$host" "$SYSROOT/lib/rustlib/$host"
	rm -f "$deb"
	rust_version > "$SYSROOT/version"
}

userland_ready() { [[ -x $ARM64/bin/busybox && -x $ARM64/bin/bash-static ]]; }

fetch_userland() {
	local program package deb
	say "fetching arm64 programs for the initramfs: busybox, bash"
	private_apt_update "$release"
	mkdir -p "$ARM64/bin"
	for program in busybox bash-static; do
		package=${program%-static}-static
		deb=$(fetch_package "$package" "$ARM64") || die "no $package for arm64 in the archive"
		# In /bin or in /usr/bin, as the release has it.
		dpkg-deb --fsys-tarfile "$deb" | tar xO --wildcards "*/bin/$program" > "$ARM64/$program"
		chmod +x "$ARM64/$program"
		mv "$ARM64/$program" "$ARM64/bin/"
		rm -f "$deb"
	done
}

bindgen_ready() { [[ $("$BINDGEN" --version 2>/dev/null) == "bindgen $BINDGEN_VERSION" ]]; }

build_bindgen() {
	say "building bindgen $BINDGEN_VERSION (about 3 minutes)"
	env -u RUSTFLAGS CARGO_TARGET_DIR="$CACHE/target/bindgen" "$cargo" install --quiet --force \
		--locked --root "$TOOLS" "bindgen-cli@$BINDGEN_VERSION" >&2 ||
		die "cargo could not build bindgen; check the network and cargo's registry settings"
	rm -rf "$CACHE/target/bindgen"
}

# have WHAT READY GET - makes WHAT ready, or with --check only tells.
have() {
	local what=$1 ready=$2
	shift 2
	! "$ready" || return 0
	missing=1
	if ((check)); then
		say "missing: $what"
	else
		need_space 2
		"$@"
	fi
}

packages_ready() { [[ -z $packages ]]; }
kernel_ready() { source_ready "$kernel"; }

check_system
missing=0
cargo=$(find_cargo) || cargo=
packages=$(missing_packages)
have "packages: $(cut -d' ' -f1 <<< "$packages" | xargs)" packages_ready install_packages "$packages"
# Fresh package, or the caller's: either way the one to go on with.
cargo=$(find_cargo) || ((check)) || die "no cargo >= $RUST_FLOOR although Debian's is installed"
have "bindgen $BINDGEN_VERSION" bindgen_ready build_bindgen
have "arm64 std for rustc" std_ready fetch_std
have "arm64 busybox and bash" userland_ready fetch_userland
for kernel in "${kernels[@]}"; do
	have "sources of Linux $kernel" kernel_ready fetch_source "$release" "$kernel"
done
if ((missing)); then
	if ((check)); then exit 1; fi
	say "ready"
fi
