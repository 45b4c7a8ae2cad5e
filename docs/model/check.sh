#!/bin/sh
# Have SPIN explore the model of the elector, as it is and with planted faults that it must find.
set -eu
for program in spin gcc; do
    command -v "$program" >/dev/null || {
        echo "$program is not installed, so the model was not checked; on Debian: apt install spin gcc"
        exit 1
    }
done
model=$(cd "$(dirname "$0")" && pwd)/elector.pml
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"

# explore EXPECTED WORDS OPTION...: the number of errors that must be found, and what this is
explore() {
    expected=$1 words=$2
    shift 2
    spin -a "$@" "$model" >/dev/null
    gcc -O2 -w -DSAFETY -DCOLLAPSE -o pan pan.c
    ./pan -m2000000 >found
    errors=$(sed -n 's/.*errors: //p' found)
    states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' found)
    echo "$words: $states states, $errors errors"
    if ! grep -q 'errors:' found || grep -q 'max search depth too small\|out of memory' found ||
        [ "$errors" != "$expected" ]; then
        cat found
        echo "expected $expected errors, and every state"
        exit 1
    fi
}

explore 0 "3 members, 2 terms"
explore 0 "3 members, 2 of them steady, 3 terms" -DSTEADY -DT=3
explore 1 "planted: no scouting, 2 members steady" -DSTEADY -DNO_SCOUTING
explore 1 "planted: a crash forgets votes" -DFORGETFUL
explore 0 "3 and 1 voters, 2 terms, one counts by the 1 alone" -DSET1=1 -DSET2=7 -DALONE=1
explore 0 "3 and 3 voters of 4 members, 1 term, one counts by its 3 alone" \
    -DN=4 -DT=1 -DSET1=7 -DSET2=14 -DALONE=1
explore 1 "planted: a majority of the union" -DSET1=1 -DSET2=7 -DALONE=1 -DUNION
