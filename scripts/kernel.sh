#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Source, integration, configuration and build of one arm64 kernel.

set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/apt.sh
. "$ROOT/scripts/apt.sh"
# shellcheck source=scripts/source.sh
. "$ROOT/scripts/source.sh"

usage() {
	cat <<EOF_USAGE
Usage: scripts/kernel.sh [options]

Builds an arm64 kernel with this project's component, incrementally, below
$CACHE.

  --kernel V      ${KERNELS[*]} (default ${KERNELS[0]})
  --config C      bench    the component, its bench module and its tests (default)
                  debug    bench with KASAN, lockdep, fault injection and more
                  calls    bench without the calls that take runs of pages from EL2
                  16k 64k  bench with larger pages and PTDUMP_STAGE2_DEBUGFS
                  dynamic  bench with preemption chosen at boot (preempt=full)
                  rt       bench as a real-time kernel
                  dynamic-gcc rt-gcc  the same, C compiled by gcc
                  vanilla  the kernel as it is, from a tree of its own
  --print WHAT    build nothing, print one thing: image, build, src, release
  --make TARGET   make TARGET in the configured tree instead of building (may be
                  repeated; VAR=value passes too)
  --help          this text

Examples:
  scripts/kernel.sh --config debug
  scripts/kernel.sh --kernel 6.12 --print image
  scripts/kernel.sh --make CLIPPY=1 --make arch/arm64/kvm/
EOF_USAGE
}

kernel=${KERNELS[0]}
config=bench
print=
targets=()
while (($#)); do
	case $1 in
	--kernel) kernel=$(value_of "$@"); one_of kernel "$kernel" "${KERNELS[@]}"; shift ;;
	--config) config=$(value_of "$@"); one_of config "$config" "${CONFIGS[@]}"; shift ;;
	--print) print=$(value_of "$@"); one_of 'thing to print' "$print" image build src release; shift ;;
	--make) targets+=("$(value_of "$@")"); shift ;;
	-h | --help) usage; exit ;;
	*) misuse "unknown option '$1'; valid: --kernel --config --print --make --help" ;;
	esac
	shift
done

# Without LLVM= the kernel takes the GNU tools.
compiler=()
[[ $config != *-gcc ]] || compiler=(LLVM= CROSS_COMPILE=aarch64-linux-gnu-)
flavour=
[[ $config == vanilla ]] && flavour=vanilla
src=$(source_dir "$kernel" "$flavour")
build=$CACHE/build/$kernel-$config
image=$build/arch/arm64/boot/Image
log=$build/build.log

case $print in
image) printf '%s\n' "$image"; exit ;;
build) printf '%s\n' "$build"; exit ;;
src) printf '%s\n' "$src"; exit ;;
release)
	cat "$build/include/config/kernel.release" 2>/dev/null ||
		die "not built yet; run scripts/kernel.sh --kernel $kernel --config $config"
	exit ;;
esac

fragments() {
	local names=(base "$kernel") name
	case $config in
	vanilla) ;;
	bench) names+=(component "component-$kernel") ;;
	*) names+=(component "component-$kernel" "${config%-gcc}" "${config%-gcc}-$kernel") ;;
	esac
	for name in "${names[@]}"; do
		# Not every series has fragments of its own.
		[[ $name == *"$kernel" && ! -f $ROOT/scripts/config/$name.config ]] ||
			cat "$ROOT/scripts/config/$name.config"
	done
}

# Options asked for that the configuration does not have. A later fragment may
# ask for something else than an earlier one, and wins.
not_taken() {
	fragments | grep '^CONFIG_' | tac | sort -s -u -t= -k1,1 | while IFS='=' read -r name value; do
		case $value in
		n) ! grep -q "^$name=" "$build/.config" ;;
		*) grep -qxF "$name=$value" "$build/.config" ;;
		esac || printf '%s=%s\n' "$name" "$value"
	done
}

configure() {
	local missing asked=$build/.asked
	mkdir -p "$build"
	fragments > "$asked.new"
	# A configuration takes seconds to make, and most runs change no option.
	if cmp -s "$asked.new" "$asked" && ! [[ $src/arch/arm64/kvm/Kconfig -nt $asked ||
		$src/arch/arm64/kvm/kvm_s2/Kconfig -nt $asked ]]; then
		: > "$log"
		return
	fi
	kbuild "$src" "$build" "${compiler[@]}" -s KCONFIG_ALLCONFIG="$asked.new" allnoconfig > "$log" 2>&1 ||
		{ tail -n 20 "$log" >&2; die "configuring failed; all of it is in $log"; }
	missing=$(not_taken)
	[[ -z $missing ]] ||
		die "Linux $kernel does not take these options as asked: ${missing//$'\n'/ }"
	mv "$asked.new" "$asked"
}

# Shows how far the running make, PID $1, is: a line that renews itself on a
# terminal, one line a minute elsewhere.
follow() {
	local last='' line
	while kill -0 "$1" 2>/dev/null; do
		line="$(clock $SECONDS) $(wc -l < "$log") steps $(tail -n 1 "$log" | tr -s ' \t' ' ')"
		if [[ -t 2 ]]; then
			printf '\r\033[K%.*s' "$((${COLUMNS:-80} - 1))" "$PROGRAM: $line" >&2
		elif [[ $((SECONDS / 60)) != "$last" && $SECONDS -ge 30 ]]; then
			last=$((SECONDS / 60))
			say "$line"
		fi
		sleep 1
	done
	[[ ! -t 2 ]] || printf '\r\033[K' >&2
}

build() {
	local make
	kbuild "$src" "$build" "${compiler[@]}" -j"$(nproc)" Image modules >> "$log" 2>&1 &
	make=$!
	# shellcheck disable=SC2064  # this make, not a later one
	trap "kill $make 2>/dev/null; exit 130" INT TERM
	follow "$make"
	wait "$make" || {
		grep -E -A 12 '(^|: )(fatal )?error(\[|:)|\*\*\*' "$log" | head -n 60 >&2 || true
		say "--- end of the log:"
		tail -n 15 "$log" >&2
		die "Linux $kernel ($config) did not build after $(clock $SECONDS); all of it is in $log"
	}
	grep -E -A 5 '(^|: )warning:' "$log" | head -n 40 >&2 || true
	say "Linux $(cat "$build/include/config/kernel.release") ($config) built in $(clock $SECONDS)"
}

"$ROOT/scripts/setup.sh"
mkdir -p "$CACHE/build"
exec 9> "$CACHE/build/.lock-$kernel-$config" 8> "$CACHE/build/.lock-$kernel"
flock -n 9 || { say "waiting for another build of Linux $kernel ($config)"; flock 9; }
# The tree is shared by all configurations, but only while it changes.
flock 8
# A tree that does not say what was done to it cannot be brought up to date.
[[ ! -d $src/arch/arm64/kvm/kvm_s2 || -f $src/.kvm_s2.edits ]] || rm -rf "$(readlink -f "$src")"
if ! source_ready "$kernel" "$flavour"; then
	need_space 6
	# shellcheck source=/dev/null
	. /etc/os-release
	fetch_source "$VERSION_CODENAME" "$kernel" "$flavour"
fi
[[ $config == vanilla ]] || "$ROOT/scripts/integrate.sh" "$src" >&2
exec 8>&-
configure
if ((${#targets[@]})); then
	kbuild "$src" "$build" "${compiler[@]}" "${targets[@]}"
else
	build
fi
