#!/usr/bin/env bash
# Installs what tests/browser needs: a headless Chromium, and axe-core beside it, which checks pages for accessibility.
# Usage: .ci/browser-setup.sh
# Safe to run again: what is there already is neither installed nor downloaded a second time.
set -euo pipefail
cd "$(dirname "$0")/.."

axe=4.14.1
missing=()
{ command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null || missing+=(chromium)
command -v npm >/dev/null || missing+=(npm)
[ -e /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf ] || missing+=(fonts-dejavu-core)
if [ "${#missing[@]}" -gt 0 ]; then
    as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo)
    "${as_root[@]}" apt-get update -qq
    DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

if [ ! -e ".cache/axe-core-$axe/axe.min.js" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    npm pack --silent --pack-destination "$work" "axe-core@$axe" >/dev/null
    tar -xzf "$work/axe-core-$axe.tgz" -C "$work"
    mkdir -p ".cache/axe-core-$axe"
    cp "$work/package/axe.min.js" "$work/package/LICENSE" ".cache/axe-core-$axe/"
fi
