#!/bin/sh
# Installs what the demo or the tests need and what is not there yet. Without root or apt-get it
# says what is missing and how to provide it.
#
# usage: setup.sh broker     a RabbitMQ for `make demo`
#        setup.sh test       RabbitMQ, PostgreSQL and the race detector's C compiler for `make test`
#        setup.sh site       MkDocs for `make site`
#        setup.sh servers    that, other databases, languages, a browser and images for `make test-servers`
#
#   RABBITDELAY_IMAGES=0              builds no images
#   RABBITDELAY_SKIP_INTEGRATION=1    installs no servers and builds no images
set -eu

here=$(cd "$(dirname "$0")" && pwd)

say() { printf 'setup: %s\n' "$*" >&2; }

can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

docker_answers() { command -v docker >/dev/null && docker version >/dev/null 2>&1; }

# An image of ours or an official one; which of them the launcher takes is its affair.
docker_has_image() {
	docker_answers &&
		{ [ -n "$(docker image ls -q rabbitdelay/rabbitmq)" ] || [ -n "$(docker image ls -q rabbitmq)" ]; }
}

broker_installed() { [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || command -v rabbitmq-server >/dev/null; }

server_installed() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ]; }

postgresql_installed() {
	for initdb in /usr/lib/postgresql/*/bin/initdb; do
		[ ! -x "$initdb" ] || return 0
	done
	command -v initdb >/dev/null
}

# install installs packages, or fails with what to do instead.
install() {
	instead=$1
	shift
	if ! can_install; then
		say "missing: $*. Run as root where there is apt-get, or install them, or $instead."
		exit 1
	fi
	"$here/broker/install.sh" "$@"
}

# Go fetches modules over TLS, and a bare machine trusts nobody.
trust_authorities() {
	if can_install && [ -z "${SSL_CERT_FILE:-}${SSL_CERT_DIR:-}" ] && ! [ -e /etc/ssl/certs/ca-certificates.crt ]; then
		"$here/broker/install.sh" ca-certificates
	fi
}

case ${1:-} in
broker)
	trust_authorities
	if [ -z "${AMQP_URL:-}" ] && ! docker_has_image && ! broker_installed; then
		install "set AMQP_URL to a broker that runs, or start Docker and run \`make images\`" rabbitmq-server
	fi
	;;
site)
	trust_authorities
	# Python's packages need not be Debian's.
	if ! mkdocs build --help 2>/dev/null | grep -q material; then
		install "run \`pip install mkdocs-material\`" mkdocs mkdocs-material
	fi
	;;
test | servers)
	trust_authorities
	packages=
	instead="set"
	if ! command -v "${CC:-gcc}" >/dev/null; then
		packages="$packages gcc libc6-dev"
		instead="run \`make test RACE=\` to test without the race detector, and set"
	fi
	if [ "${RABBITDELAY_SKIP_INTEGRATION:-}" != 1 ]; then
		if [ -z "${AMQP_URL:-}" ] && ! broker_installed && ! docker_has_image; then
			packages="$packages rabbitmq-server"
		fi
		if [ -z "${RABBITDELAY_POSTGRES_URL:-}" ] && ! postgresql_installed; then
			packages="$packages postgresql"
		fi
		# Brokers that need not wait for the disk.
		if can_install && [ -z "$(ls /usr/lib/*/libeatmydata.so 2>/dev/null)" ]; then
			packages="$packages libeatmydata1"
		fi
	fi
	if [ "$1" = servers ] && [ "${RABBITDELAY_SKIP_INTEGRATION:-}" != 1 ]; then
		# Private nodes too, whose clock and disk a test may spoil.
		if [ -z "${AMQP_URL:-}" ] && ! broker_installed && can_install; then
			packages="$packages rabbitmq-server"
		fi
		if [ -z "${RABBITDELAY_MARIADB_URL:-}" ] && ! server_installed mariadbd; then
			packages="$packages mariadb-server"
		fi
		if ! server_installed pgbouncer && can_install; then
			packages="$packages pgbouncer"
		fi
		if ! server_installed redis-server; then
			packages="$packages redis-server"
		fi
		# A login in front of the console.
		if ! server_installed nginx; then
			packages="$packages nginx-light"
		fi
		if ! command -v prometheus >/dev/null || ! command -v promtool >/dev/null; then
			packages="$packages prometheus"
		fi
		# Clocks of brokers that are wrong.
		if can_install && [ -z "$(ls /usr/lib/*/faketime/libfaketimeMT.so.1 2>/dev/null)" ]; then
			packages="$packages libfaketime"
		fi
		# Clients of other languages. Debian has none for JavaScript, and its C# one has no confirms.
		if can_install; then
			packages="$packages python3-pika python3-psycopg2 php-cli php-amqplib librabbitmq-client-java default-jdk-headless"
		fi
		if ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null && ! command -v google-chrome >/dev/null; then
			packages="$packages chromium"
		fi
	fi
	if [ -n "$packages" ]; then
		# shellcheck disable=SC2086 # a list of names without blanks
		install "$instead AMQP_URL, RABBITDELAY_POSTGRES_URL and RABBITDELAY_MARIADB_URL to servers that run" $packages
	fi
	# More versions of RabbitMQ, and MySQL, where they can be had. The tests run without them.
	if [ "$1" = servers ] && [ "${RABBITDELAY_IMAGES:-}" != 0 ] && [ "${RABBITDELAY_SKIP_INTEGRATION:-}" != 1 ] && [ -z "${AMQP_URL:-}" ] && docker_answers && can_install; then
		"$here/images/build.sh" || say "the tests run without images"
	fi
	;;
*)
	say "want broker, test, site or servers, got '${1:-}'"
	exit 2
	;;
esac
