#!/bin/sh
# libmemcached-tools: what they print and how they end must be the same with every libmemcached. $1: HOST:PORT
server=--servers=$1
directory=$(mktemp -d)
cd "$directory" || exit 2
say() { echo "== $*"; "$@"; echo "ends with $?"; }
printf 'hello' >first
printf 'world' >second
say memcflush "$server"
say memccp "$server" first second
say memccat "$server" first second
say memccat "$server" --flags first
say memccat "$server" absent
say memcexist "$server" first
say memcexist "$server" absent
say memccp "$server" --add first
say memccp "$server" --replace first
say memccp "$server" --expire=1000000000 second
say memccat "$server" second
say memctouch "$server" --expire=100 first
say memctouch "$server" --expire=100 absent
say memcrm "$server" first
say memcrm "$server" first
say memccat "$server" first
say memcping "$server"
say memccp "$server" --binary first
say memccat "$server" --binary first
say memcerror 16
say memcstat "$server" >stats
grep -c . stats >/dev/null && grep -oE '[[:space:]](pid|version|curr_items|limit_maxbytes):' stats | sort
say memcstat "$server" --analyze | grep -cE 'Number of Servers Analyzed|Pool-wide Hit Ratio'
memcdump "$server" >keys
echo "dump ends with $?"
say memcslap "$server" --concurrency=2 --execute-number=200 --initial-load=100 --test=get | grep -c 'Threads'
say memcparse "--SERVER=$1"
say memcflush "$server"
say memccat "$server" first
rm -r "$directory"
