#!/usr/bin/env bash
# Builds the local images that the integration suite runs against, from Debian's own packages, for
# machines that cannot pull from a container registry. Each Debian suite carries one RabbitMQ line,
# sid alone carries MySQL, and bookworm's Celery has no native delayed delivery yet:
#
#   bookworm -> rabbitdelay/rabbitmq:3.10
#   trixie   -> rabbitdelay/rabbitmq:4.0
#   trixie   -> rabbitdelay/celery:5.5
#   sid      -> rabbitdelay/rabbitmq:4.3
#   sid      -> rabbitdelay/mysql:9.7
#
# usage: build.sh [IMAGE...]      e.g. build.sh 4.0 mysql; without arguments all of them
#
#   FORCE=1     build again although the image exists
#   JOBS=N      suites built at the same time, 2 unless given
#   CACHE_DIR   where the chroots and logs go, .cache/images of the repository unless given
#
# An image that cannot be built is a warning; the exit status is 1 only when none is there in the
# end.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
cache=${CACHE_DIR:-$repo/.cache/images}
jobs=${JOBS:-2}
all="4.3 mysql 3.10 4.0 celery" # sid first, which takes longest

suite_of() {
	case $1 in
	3.10) echo bookworm ;;
	4.0 | celery) echo trixie ;;
	4.3 | mysql) echo sid ;;
	*) return 1 ;;
	esac
}

product_of() {
	case $1 in
	mysql | celery) echo "$1" ;;
	*) echo rabbitmq ;;
	esac
}

say() { printf 'images: %s\n' "$*" >&2; }

# Images are found by the suite they were built from and not by their tag: sid moves on, and the
# tag always tells the version that is really inside.
built() {
	[ -n "$(docker image ls -q --filter "label=rabbitdelay.suite=$(suite_of "$1")" "rabbitdelay/$(product_of "$1")")" ]
}

need_docker() {
	docker version --format '{{.Server.Version}}' >/dev/null 2>&1 ||
		{ say "Docker does not answer; start it, or run the tests without containers"; exit 1; }
}

need_debootstrap() {
	[ "$(id -u)" = 0 ] || { say "building needs root (debootstrap and chroot); run: sudo make images"; exit 1; }
	if ! command -v debootstrap >/dev/null || ! [ -e /usr/share/keyrings/debian-archive-keyring.gpg ]; then
		command -v apt-get >/dev/null || { say "debootstrap is missing and there is no apt-get to install it"; exit 1; }
		say "installing debootstrap"
		"$repo/integration/broker/install.sh" debootstrap debian-archive-keyring
	fi
}

# remove_root unmounts what an interrupted debootstrap may have left before it removes anything.
remove_root() {
	local root=$1
	[ -d "$root" ] || return 0
	for m in proc sys dev/pts dev; do
		umount -l "$root/$m" 2>/dev/null || true
	done
	rm -rf --one-file-system "$root"
}

# build_suite builds images on one base system. It runs in a subshell of its own, with its output in
# a log, in which a line "built ..." tells of each image.
build_suite() {
	local suite=$1 root=$2
	shift 2
	trap 'remove_root "$root"; remove_root "$root.copy"' EXIT
	trap 'exit 130' INT TERM

	debootstrap --variant=minbase "$suite" "$root"

	# No service may start inside the chroot, and the packages need no manual pages.
	printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
	chmod 755 "$root/usr/sbin/policy-rc.d"
	cat >"$root/etc/dpkg/dpkg.cfg.d/no-docs" <<-'CFG'
		path-exclude=/usr/share/doc/*
		path-exclude=/usr/share/man/*
		path-exclude=/usr/share/info/*
		path-exclude=/usr/share/locale/*
	CFG

	export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
	# sid's lists expire within a week, and a mirror that stands still is good enough for a test image:
	# the signatures are checked all the same.
	chroot "$root" apt-get -o Acquire::Check-Valid-Until=false update -qq

	local image status=0
	for image; do
		cp -a "$root" "$root.copy"
		# In a process of its own, because bash does not end a function on an error where its status is
		# asked for.
		(set -e; "add_$(product_of "$image")" "$root.copy" "$suite") &
		wait $! || status=1
		remove_root "$root.copy"
	done
	return $status
}

# install_package installs a package into a chroot, and prints its upstream version: Debian writes 4.0.5-8 or
# 1:3.10.8-1.1.
install_package() {
	local root=$1 package=$2
	chroot "$root" apt-get install -y -qq --no-install-recommends "$package" >&2
	rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/var/cache/debconf/*-old \
		"$root"/usr/share/doc/* "$root"/usr/share/man/* "$root"/usr/share/info/* "$root"/usr/share/locale/* \
		"$root"/var/log/*.log "$root"/var/log/apt "$root"/usr/sbin/policy-rc.d
	printf '127.0.0.1 localhost\n' >"$root/etc/hosts"
	chroot "$root" dpkg-query -W -f '${Version}' "$package" | sed 's/^[0-9]*://; s/[-+~].*//'
}

# import makes an image of a chroot; the tag is the release line.
import() {
	local root=$1 suite=$2 name=$3 version=$4
	shift 4
	local tag
	tag=$(printf '%s' "$version" | cut -d. -f1,2)
	tar -C "$root" --numeric-owner --exclude=./proc/* --exclude=./sys/* --exclude=./dev/* -c . |
		docker import \
			--change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
			--change 'ENV LANG=C.UTF-8' \
			"$@" \
			--change "LABEL rabbitdelay.suite=$suite" \
			--change "LABEL rabbitdelay.version=$version" \
			- "$name:$tag" >/dev/null
	echo "built $name:$tag ($version)"
}

add_rabbitmq() {
	local root=$1 suite=$2 version
	version=$(install_package "$root" rabbitmq-server)
	rm -rf "$root"/var/lib/rabbitmq/* "$root"/var/lib/rabbitmq/.erlang.cookie
	install -D -m 644 "$here/rabbitmq.conf" "$root/etc/rabbitmq/rabbitmq.conf"
	install -D -m 644 "$here/enabled_plugins" "$root/etc/rabbitmq/enabled_plugins"
	install -m 755 "$here/rabbitmq.sh" "$root/usr/local/bin/rabbitmq-foreground"
	mkdir -p "$root/etc/rabbitmq/conf.d" "$root/plugins"
	import "$root" "$suite" rabbitdelay/rabbitmq "$version" \
		--change 'ENV HOME=/var/lib/rabbitmq' \
		--change 'ENV RABBITMQ_NODENAME=rabbit@localhost' \
		--change 'EXPOSE 5672 15672' \
		--change 'VOLUME /var/lib/rabbitmq' \
		--change 'CMD ["/usr/local/bin/rabbitmq-foreground"]'
}

add_mysql() {
	local root=$1 suite=$2 version
	version=$(install_package "$root" mysql-server-core)
	chroot "$root" useradd --system --home-dir /var/lib/mysql --shell /usr/sbin/nologin mysql
	install -d "$root/var/lib/mysql"
	install -m 755 "$here/mysql.sh" "$root/usr/local/bin/mysql-foreground"
	import "$root" "$suite" rabbitdelay/mysql "$version" \
		--change 'EXPOSE 3306' \
		--change 'VOLUME /var/lib/mysql' \
		--change 'ENTRYPOINT ["/usr/local/bin/mysql-foreground"]'
}

add_celery() {
	local root=$1 suite=$2 version
	version=$(install_package "$root" python3-celery)
	import "$root" "$suite" rabbitdelay/celery "$version"
}

need_docker
# shellcheck disable=SC2086 # a list of names without blanks
[ $# -gt 0 ] || set -- $all

declare -A wanted=() # the images to build, by suite
suites=()
for image in "$@"; do
	suite=$(suite_of "$image") || { say "no Debian suite is known for $image; known: $all"; exit 1; }
	if [ "${FORCE:-0}" != 1 ] && built "$image"; then
		say "rabbitdelay/$(product_of "$image") from Debian $suite is there"
		continue
	fi
	[ -n "${wanted[$suite]:-}" ] || suites+=("$suite")
	wanted[$suite]+=" $image"
done

declare -A building=() # suites by the process that builds them
# An interrupted build leaves neither processes nor a chroot behind.
trap '[ ${#building[@]} = 0 ] || kill "${!building[@]}" 2>/dev/null || true; wait; exit 130' INT TERM

# finish_one waits for a suite and says what came of it.
finish_one() {
	local pid status=0
	wait -n -p pid "${!building[@]}" || status=$?
	local suite=${building[$pid]}
	unset "building[$pid]"
	grep '^built ' "$cache/$suite.log" | while read -r line; do say "$line"; done || true
	if [ $status != 0 ]; then
		say "warning: not every image of Debian $suite could be built (of:${wanted[$suite]}); the end of $cache/$suite.log:"
		tail -n 15 "$cache/$suite.log" | sed 's/^/    /' >&2
	fi
}

if [ ${#suites[@]} -gt 0 ]; then
	need_debootstrap
	mkdir -p "$cache"
	for suite in "${suites[@]}"; do
		[ ${#building[@]} -lt "$jobs" ] || finish_one
		root=$(mktemp -d "$cache/$suite.XXXXXX")
		chmod 755 "$root"
		say "building from Debian $suite:${wanted[$suite]} (log: $cache/$suite.log)"
		# shellcheck disable=SC2086 # a list of names without blanks
		build_suite "$suite" "$root" ${wanted[$suite]} >"$cache/$suite.log" 2>&1 </dev/null &
		building[$!]=$suite
	done
	while [ ${#building[@]} -gt 0 ]; do
		finish_one
	done
fi
trap - INT TERM

# unpack copies the programs of a RabbitMQ image to volumes, which the launcher mounts over the same folders.
# With the storage driver fuse-overlayfs every access to an image's files goes through one more process; from
# volumes a broker starts in two thirds of the time. The last volume tells that the copies are complete, and
# of which image they are.
unpack() {
	local image=$1 id volume dir mounts=()
	id=$(docker image inspect -f '{{.Id}}' "$image")
	volume=$(printf '%s' "$image" | tr '/:' '--')
	[ "$(docker volume inspect -f '{{index .Labels "rabbitdelay.image"}}' "$volume-complete" 2>/dev/null)" != "$id" ] || return 0
	docker volume rm "$volume-complete" "$volume-erlang" "$volume-rabbitmq" >/dev/null 2>&1 || true
	for dir in erlang rabbitmq; do
		mounts+=(-v "$volume-$dir:/usr/lib/$dir")
	done
	# Docker fills an empty volume with what the image has in that folder.
	docker run --rm "${mounts[@]}" "$image" true &&
		docker volume create --label "rabbitdelay.image=$id" "$volume-complete" >/dev/null
}

if [ "$(docker info -f '{{.Driver}}')" = fuse-overlayfs ]; then
	for image in $(docker image ls --filter dangling=false --format '{{.Repository}}:{{.Tag}}' rabbitdelay/rabbitmq); do
		unpack "$image" || say "warning: $image could not be unpacked; its brokers start more slowly"
	done
fi

for image in "$@"; do
	if built "$image"; then
		exit 0
	fi
done
say "no image could be built"
exit 1
