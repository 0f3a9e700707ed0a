#!/usr/bin/env bash
# What ./dev demo shows: a real failing job under gpualert, and everything that comes of it.
set -uo pipefail
cd "$(dirname "$0")/.."
gpualert=.venv/bin/gpualert
runs=$(mktemp -d "${TMPDIR:-/tmp}/gpualert-demo-XXXXXX")
trap 'rm -rf "$runs"' EXIT

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] || say() { printf '\n%s\n' "$*"; }
show() {
    say "\$ $*"
    "$@"
}

say '$ gpualert run --name demo --email-to oncall@example.org -- python examples/train.py'
# Without a mail server the message waits in the spool; --tty never keeps what follows in plain lines.
$gpualert run --log-dir "$runs" --name demo --email-to oncall@example.org --tty never -- .venv/bin/python examples/train.py
status=$?
say "exit status $status: the command's own"

show $gpualert report --log-dir "$runs" latest
show $gpualert runs --log-dir "$runs"
say '$ gpualert logs --timestamps latest | tail -4'
$gpualert logs --log-dir "$runs" --timestamps latest | tail -4
say 'the mail, as it waits for a server (gpualert flush sends it)'
sed -n '/^\(Subject\|To\|From\|Auto-Submitted\): /p' "$runs"/latest/mail/*.eml
say 'the run directory'
ls "$runs"/latest/

[ "$status" -eq 1 ] || { echo "demo: expected exit status 1, got $status" >&2; exit 1; }
$gpualert report --log-dir "$runs" --format json latest | grep -q '"class": "ram_oom"' || {
    echo "demo: expected the class ram_oom" >&2
    exit 1
}
say 'page for a browser: report.html in the run directory (removed with this demo)'
