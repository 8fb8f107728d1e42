#!/bin/sh
# new-env.sh [small|medium|large]    Write .env, with fresh passwords and the values of such a fleet.
set -eu
cd "$(dirname "$0")"
size=${1:-small}
umask 077

random() { head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n'; }

key() { printf 'whsec_%s' "$(head -c 24 /dev/urandom | base64)"; }

case $size in
    small) choose='s/ *# medium: .*//' ;;
    medium) choose='s/=.*# medium: \([^,]*\),.*/=\1/' ;;
    large) choose='s/=.*, large: \(.*\)/=\1/' ;;
    *) echo "There is no size $size: small, medium or large." >&2; exit 2 ;;
esac
if [ -e .env ]; then
    echo "There is a .env already: its passwords are those of the databases. Move it away to begin anew." >&2
    exit 1
fi
sed "$choose" .env.example | while IFS= read -r line; do
    case $line in
        PECIA_WEBHOOK_SECRET=) echo "$line$(key)" ;;
        *_PASSWORD=) echo "$line$(random)" ;;
        *) echo "$line" ;;
    esac
done > .env
