#!/bin/sh
# A shell pipeline of short-lived processes, joined by pipes.
#
# Arguments: the last number to count to (default 200000).
#
# Known answer. Six processes besides the shell: seq, awk, sort, uniq, wc, and the subshell of $( ) that starts them.
# Of 1..N each number modulo 1000 occurs, so for N >= 1000 the line is `shell_pipeline distinct=1000`. sort grows with
# N; the others stay small. No known page counts.
set -eu
last=${1:-200000}
distinct=$(seq 1 "$last" | awk '{ print $1 % 1000 }' | LC_ALL=C sort -n | uniq | wc -l)
expected=1000
[ "$last" -ge 1000 ] || expected=$last
if [ "$distinct" -ne "$expected" ]; then
    echo "error: $distinct distinct values, not $expected" >&2
    exit 1
fi
echo "shell_pipeline distinct=$((distinct))"
