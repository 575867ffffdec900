#!/bin/bash
# nightly.sh   One night: answers what the topic holds into a database of that date.
#
# SHEAF_BROKERS (127.0.0.1:9092), SHEAF_TOPIC, SHEAF_RESULTS_TOPIC, SHEAF_GROUP: as the flags of
# `sheaf work`; SHEAF_FOLDER (.): where databases go; SHEAF_MODEL: a GGUF file. Arguments are
# handed on. Exit 0 also when single jobs failed: their results say why.
set -eu

folder=${SHEAF_FOLDER:-.}
database=$folder/$(date +%F).db
sheaf=$(command -v sheaf || echo "$(dirname -- "$0")/../build/release/sheaf")

mkdir -p "$folder"
rc=0
"$sheaf" work -b "${SHEAF_BROKERS:-127.0.0.1:9092}" --topic "${SHEAF_TOPIC:-sheaf.jobs}" \
    --results-topic "${SHEAF_RESULTS_TOPIC:-sheaf.results}" --group "${SHEAF_GROUP:-sheaf}" \
    --db "$database" ${SHEAF_MODEL:+--model "$SHEAF_MODEL"} --exit-when-empty "$@" || rc=$?
if [ $rc -gt 1 ]; then
    echo "nightly: sheaf work ended with $rc" >&2
    exit $rc
fi
"$sheaf" stats --db "$database"
