#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Removes what can be built again.

set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage() {
	cat <<EOF_USAGE
Usage: scripts/clean.sh [--all]

Removes kernel builds, cargo output and results below
  $CACHE
and keeps what was downloaded: sources, tools, arm64 programs.

  --all    remove those too
  --help   this text

Example:
  scripts/clean.sh --all
EOF_USAGE
}

what=(build target out)
case ${1:-} in
'') ;;
--all) what+=(src apt tools arm64) ;;
-h | --help) usage; exit ;;
*) misuse "unknown option '$1'; valid: --all --help" ;;
esac
for name in "${what[@]}"; do rm -rf "${CACHE:?}/$name"; done
