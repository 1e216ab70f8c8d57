#!/bin/sh
# Installs missing requirements of the demo or the tests. Without root or apt-get, it prints what is missing and how to
# provide it.
#
# usage: setup.sh broker     a RabbitMQ for `make demo`
#        setup.sh test       RabbitMQ, PostgreSQL, curl and the race detector's C compiler for `make test`
#        setup.sh site       MkDocs for `make site`
#        setup.sh servers    the same as test, and other databases, languages, a browser and images for `make test-servers`
#
#   RABBITDELAY_IMAGES=0              does not build images
#   RABBITDELAY_SKIP_INTEGRATION=1    does not install servers or build images
set -eu

here=$(cd "$(dirname "$0")" && pwd)

say() { printf 'setup: %s\n' "$*" >&2; }

can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

docker_answers() { command -v docker >/dev/null && docker version >/dev/null 2>&1; }

# docker_has_image looks for a local image, built by `make images`, or an official one. The launcher supports both.
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

# install installs packages. If that is not possible, it prints what to do instead and exits with status 1.
install() {
	instead=$1
	shift
	if ! can_install; then
		say "missing packages: $*. Run this as root on a system with apt-get, or install them yourself, or $instead."
		exit 1
	fi
	"$here/broker/install.sh" "$@"
}

# trust_authorities installs CA certificates if there are none, because Go downloads modules over TLS.
trust_authorities() {
	if can_install && [ -z "${SSL_CERT_FILE:-}${SSL_CERT_DIR:-}" ] && ! [ -e /etc/ssl/certs/ca-certificates.crt ]; then
		"$here/broker/install.sh" ca-certificates
	fi
}

case ${1:-} in
broker)
	trust_authorities
	if [ -z "${AMQP_URL:-}" ] && ! docker_has_image && ! broker_installed; then
		install "set AMQP_URL to a running broker, or start Docker and run \`make images\`" rabbitmq-server
	fi
	;;
site)
	trust_authorities
	# MkDocs may also have been installed with pip.
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
		# Readers of the tutorials use curl, and so do the tests of the tutorials.
		if ! command -v curl >/dev/null; then
			packages="$packages curl"
		fi
		# This library lets brokers skip waiting for the disk.
		if can_install && [ -z "$(ls /usr/lib/*/libeatmydata.so 2>/dev/null)" ]; then
			packages="$packages libeatmydata1"
		fi
	fi
	if [ "$1" = servers ] && [ "${RABBITDELAY_SKIP_INTEGRATION:-}" != 1 ]; then
		# Some tests need a private node in addition to images, because they change its clock or fill its disk.
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
		# nginx provides the login in front of the console.
		if ! server_installed nginx; then
			packages="$packages nginx-light"
		fi
		if ! command -v prometheus >/dev/null || ! command -v promtool >/dev/null; then
			packages="$packages prometheus"
		fi
		# libfaketime gives a broker a wrong clock.
		if can_install && [ -z "$(ls /usr/lib/*/faketime/libfaketimeMT.so.1 2>/dev/null)" ]; then
			packages="$packages libfaketime"
		fi
		# These are clients for other languages. Debian has none for JavaScript, and its client for C# does not support
		# confirms.
		if can_install; then
			packages="$packages python3-pika python3-psycopg2 php-cli php-amqplib librabbitmq-client-java default-jdk-headless"
		fi
		if ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null && ! command -v google-chrome >/dev/null; then
			packages="$packages chromium"
		fi
	fi
	if [ -n "$packages" ]; then
		# shellcheck disable=SC2086 # a list of names without blanks
		install "$instead AMQP_URL, RABBITDELAY_POSTGRES_URL and RABBITDELAY_MARIADB_URL to running servers" $packages
	fi
	# Build images of other RabbitMQ versions and of MySQL if possible. The tests can run without them.
	if [ "$1" = servers ] && [ "${RABBITDELAY_IMAGES:-}" != 0 ] && [ "${RABBITDELAY_SKIP_INTEGRATION:-}" != 1 ] && [ -z "${AMQP_URL:-}" ] && docker_answers && can_install; then
		"$here/images/build.sh" || say "the images were not built; the tests will run without them"
	fi
	;;
*)
	say "got the argument '${1:-}', want broker, test, site or servers"
	exit 2
	;;
esac
