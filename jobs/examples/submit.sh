#!/bin/sh
# Puts the lines of a job file on the jobs topic and reads the results, with kcat and jq.
#
#   ./submit.sh library.jsonl [BROKERS [JOBS_TOPIC [RESULTS_TOPIC]]]
#
# Jobs over the same documents get the same key, so they meet on one partition and one worker.
# murmur2_random is the partitioner that Java clients and `sheaf submit` use. A line that is no
# JSON goes out without a key: it gets its error result like any other.
set -eu

if [ $# -lt 1 ]; then
    sed -n '2,8s/^# \{0,1\}//p' "$0"
    exit 2
fi
file=$1
brokers=${2:-127.0.0.1:9092}
jobs=${3:-sheaf.jobs}
results=${4:-sheaf.results}

# Results from now on are ours; the same moment holds for every partition of the topic.
start_ms=$(date +%s000)

# kcat -K splits each line into key and value at the first tab; JSON has none but as white space
# between its parts, which is made a space here. -Z sends an empty key as no key.
tab=$(printf '\t')
tmp=$(mktemp)
trap 'rm -f "$tmp"' EXIT
tr '\t' ' ' <"$file" | tr -d '\r' | while IFS= read -r line || [ -n "$line" ]; do
    [ -n "$line" ] || continue
    shared=$(printf '%s' "$line" | jq -c '[.system, (.documents // .custom_id)]' 2>/dev/null) ||
        shared=
    key=${shared:+$(printf '%s' "$shared" | sha256sum | cut -c1-32)}
    printf '%s%s%s\n' "$key" "$tab" "$line" >>"$tmp"
done
n=$(wc -l <"$tmp")
kcat -b "$brokers" -P -t "$jobs" -K "$tab" -Z -H content-type=application/json \
    -X topic.partitioner=murmur2_random -X enable.idempotence=true -l "$tmp"
echo "$n jobs sent" >&2

kcat -b "$brokers" -C -t "$results" -o "s@$start_ms" -c "$n" -u -q \
    -X isolation.level=read_committed
