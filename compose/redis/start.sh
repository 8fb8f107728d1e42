#!/bin/sh
# Becomes the server, with the accounts of docs/security.md. Their passwords come from the environment and are written
# into memory alone: /tmp is no disk in this container.
set -eu
umask 077
cat > /tmp/users.acl <<END
user default off
user health on nopass resetchannels resetkeys -@all +ping
user fleet on >$REDIS_FLEET_PASSWORD resetchannels &pecia:* &/0.celery.pidbox &/0.celeryev/* resetkeys ~pecia:* ~ingest.* ~read.* ~caption.* ~summarize.* ~split.* ~_kombu.* ~*.celery.pidbox ~celeryev.* -@all +@list +@hash +@set +@sortedset +@pubsub +@transaction -@dangerous +ping +hello +auth +select +time +get +set +del +exists +pexpire +type +scan +eval +evalsha +script|load +script|exists +info
user client on >$REDIS_CLIENT_PASSWORD resetchannels &pecia:cancelled &pecia:job:* &pecia:gateway resetkeys ~pecia:bell:* ~pecia:standing:* ~pecia:gateway:* ~ingest.* ~read.* ~caption.* ~summarize.* ~split.* -@all +ping +hello +auth +select +eval +evalsha +script|load +incrby +expire +llen +lpush +hget +hmget +hset +hincrby +exists +pexpire +publish +subscribe +unsubscribe
END
unset REDIS_FLEET_PASSWORD REDIS_CLIENT_PASSWORD
exec valkey-server /etc/valkey/redis.conf --maxmemory "$REDIS_MAXMEMORY"
