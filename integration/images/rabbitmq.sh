#!/bin/sh
# Runs the broker in the foreground, as the user rabbitmq.
#
#   RABBITMQ_NODENAME       rabbit@localhost unless given; a cluster gives each container its own
#   RABBITMQ_ERLANG_COOKIE  the shared secret of a cluster's nodes
#
# Lines for rabbitmq.conf go into /etc/rabbitmq/conf.d, plugins into /plugins.
set -eu

data=/var/lib/rabbitmq
mkdir -p "$data/mnesia" /var/log/rabbitmq
if [ -n "${RABBITMQ_ERLANG_COOKIE:-}" ]; then
	printf '%s' "$RABBITMQ_ERLANG_COOKIE" >"$data/.erlang.cookie.new"
	mv -f "$data/.erlang.cookie.new" "$data/.erlang.cookie"
	# RabbitMQ warns about the variable on every start, and the file is enough.
	unset RABBITMQ_ERLANG_COOKIE
fi
if [ -e "$data/.erlang.cookie" ]; then
	chmod 400 "$data/.erlang.cookie"
fi
chown -R rabbitmq:rabbitmq "$data" /var/log/rabbitmq

# Erlang sizes tables by this limit, and some Docker daemons set it to a thousand million.
limit=$(ulimit -n)
if [ "$limit" = unlimited ] || [ "$limit" -gt 65536 ]; then
	ulimit -n 65536
fi

export HOME="$data"
dir=$(echo /usr/lib/rabbitmq/lib/rabbitmq_server-*/plugins)
export RABBITMQ_PLUGINS_DIR="/usr/lib/rabbitmq/plugins:/plugins:$dir"
exec setpriv --reuid=rabbitmq --regid=rabbitmq --init-groups /usr/lib/rabbitmq/bin/rabbitmq-server
