#!/bin/sh
# Runs the broker in the foreground as the user rabbitmq.
#
#   RABBITMQ_NODENAME       the node's name, by default rabbit@localhost; each node of a cluster needs a different one
#   RABBITMQ_ERLANG_COOKIE  the secret that the nodes of a cluster share
#
# Files in /etc/rabbitmq/conf.d extend rabbitmq.conf, and /plugins contains additional plugins.
set -eu

data=/var/lib/rabbitmq
mkdir -p "$data/mnesia" /var/log/rabbitmq
if [ -n "${RABBITMQ_ERLANG_COOKIE:-}" ]; then
	printf '%s' "$RABBITMQ_ERLANG_COOKIE" >"$data/.erlang.cookie.new"
	mv -f "$data/.erlang.cookie.new" "$data/.erlang.cookie"
	# The file is sufficient, and RabbitMQ warns about the variable at every start.
	unset RABBITMQ_ERLANG_COOKIE
fi
if [ -e "$data/.erlang.cookie" ]; then
	chmod 400 "$data/.erlang.cookie"
fi
chown -R rabbitmq:rabbitmq "$data" /var/log/rabbitmq

# Erlang allocates tables of this size, and some Docker daemons set the limit to a billion.
limit=$(ulimit -n)
if [ "$limit" = unlimited ] || [ "$limit" -gt 65536 ]; then
	ulimit -n 65536
fi

export HOME="$data"
dir=$(echo /usr/lib/rabbitmq/lib/rabbitmq_server-*/plugins)
export RABBITMQ_PLUGINS_DIR="/usr/lib/rabbitmq/plugins:/plugins:$dir"
exec setpriv --reuid=rabbitmq --regid=rabbitmq --init-groups /usr/lib/rabbitmq/bin/rabbitmq-server
