#!/usr/bin/env bash
# A step for any pipeline that has a shell: quantize, hold the result against gates, and against the last run.
# Usage: quantize.sh MODEL DATA CHECKED OUTPUT REPORTS
#   MODEL    the float model
#   DATA     samples that calibrate
#   CHECKED  other samples, on which the result is judged; they should change as seldom as a test does
#   OUTPUT   where the result goes
#   REPORTS  a folder that the pipeline keeps between runs and shows to people
# Exit code: that of quantool: 0 all is well, 1 a gate failed or something got worse, 2 wrong input, 3 no result.
# OUTPUT appears only if every gate holds and nothing got worse; otherwise an older one stays as it is.
set -euo pipefail

model=$1 data=$2 checked=$3 output=$4 reports=$5
candidate=$reports/candidate/$(basename "$output")
mkdir -p "$(dirname "$candidate")"

quantool quantize "$model" --data "$data" --verify-data "$checked" -o "$candidate" --force \
    --min-sqnr 25 --min-agreement 0.9 --max-size-ratio 0.5 \
    --report "$reports/quantization.xml" --report "$reports/quantization.html" --report "$reports/quantization.json"

if [ -e "$reports/last.json" ]; then
    quantool check "$reports/quantization.json" --baseline "$reports/last.json" --tolerance speedup=30% \
        --report "$reports/regression.xml" --force
fi

# What is beside the model are its weights, whose names tell their content; the model comes last.
find "$(dirname "$candidate")" -type f ! -name "$(basename "$output")" -exec mv {} "$(dirname "$output")" \;
mv "$candidate" "$output"
cp "$reports/quantization.json" "$reports/last.json"
