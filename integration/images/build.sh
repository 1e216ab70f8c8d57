#!/usr/bin/env bash
# Builds the local images for the integration tests from Debian's packages, for machines that cannot pull from a
# container registry. Each Debian suite contains one RabbitMQ release line. Only sid contains MySQL, and bookworm's
# Celery does not support native delayed delivery:
#
#   bookworm -> rabbitdelay/rabbitmq:3.10
#   trixie   -> rabbitdelay/rabbitmq:4.0
#   trixie   -> rabbitdelay/celery:5.5
#   sid      -> rabbitdelay/rabbitmq:4.3
#   sid      -> rabbitdelay/mysql:9.7
#
# usage: build.sh [IMAGE...]      such as build.sh 4.0 mysql; without arguments, it builds all images
#
#   FORCE=1     build images again that already exist
#   JOBS=N      number of suites to build at the same time, by default 2
#   CACHE_DIR   directory for chroots and logs, by default .cache/images in the repository
#
# If an image cannot be built, a warning is printed. The exit status is 1 only if none of the images exists at the end.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
cache=${CACHE_DIR:-$repo/.cache/images}
jobs=${JOBS:-2}
all="4.3 mysql 3.10 4.0 celery" # sid is first, because it takes longest

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

# built reports whether an image exists. It searches by the Debian suite and not by the tag, because the tag is the
# version that the image contains, and the version in sid changes.
built() {
	[ -n "$(docker image ls -q --filter "label=rabbitdelay.suite=$(suite_of "$1")" "rabbitdelay/$(product_of "$1")")" ]
}

need_docker() {
	docker version --format '{{.Server.Version}}' >/dev/null 2>&1 ||
		{ say "Docker does not answer; start it, or run the tests without images"; exit 1; }
}

need_debootstrap() {
	[ "$(id -u)" = 0 ] || { say "building needs root (debootstrap and chroot); run: sudo make images"; exit 1; }
	if ! command -v debootstrap >/dev/null || ! [ -e /usr/share/keyrings/debian-archive-keyring.gpg ]; then
		command -v apt-get >/dev/null || { say "debootstrap is not installed, and there is no apt-get to install it"; exit 1; }
		say "installing debootstrap"
		"$repo/integration/broker/install.sh" debootstrap debian-archive-keyring
	fi
}

# remove_root removes a chroot. It first unmounts file systems that an interrupted debootstrap may have left.
remove_root() {
	local root=$1
	[ -d "$root" ] || return 0
	for m in proc sys dev/pts dev; do
		umount -l "$root/$m" 2>/dev/null || true
	done
	rm -rf --one-file-system "$root"
}

# build_suite builds the images of one Debian suite. It runs in a separate process whose output is a log, which contains
# a line "built ..." for each image.
build_suite() {
	local suite=$1 root=$2
	shift 2
	trap 'remove_root "$root"; remove_root "$root.copy"' EXIT
	trap 'exit 130' INT TERM

	debootstrap --variant=minbase "$suite" "$root"

	# Prevent services from starting inside the chroot, and omit the packages' documentation.
	printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
	chmod 755 "$root/usr/sbin/policy-rc.d"
	cat >"$root/etc/dpkg/dpkg.cfg.d/no-docs" <<-'CFG'
		path-exclude=/usr/share/doc/*
		path-exclude=/usr/share/man/*
		path-exclude=/usr/share/info/*
		path-exclude=/usr/share/locale/*
	CFG

	export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
	# sid's package lists expire within a week. An outdated mirror is good enough for a test image, and apt still verifies
	# the signatures.
	chroot "$root" apt-get -o Acquire::Check-Valid-Until=false update -qq

	local image status=0
	for image; do
		cp -a "$root" "$root.copy"
		# Use a separate process, because bash ignores set -e in a function whose status is tested.
		(set -e; "add_$(product_of "$image")" "$root.copy" "$suite") &
		wait $! || status=1
		remove_root "$root.copy"
	done
	return $status
}

# install_package installs a package in a chroot and prints its upstream version, without the other parts of Debian's
# versions, such as 4.0.5-8 or 1:3.10.8-1.1.
install_package() {
	local root=$1 package=$2
	chroot "$root" apt-get install -y -qq --no-install-recommends "$package" >&2
	rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/var/cache/debconf/*-old \
		"$root"/usr/share/doc/* "$root"/usr/share/man/* "$root"/usr/share/info/* "$root"/usr/share/locale/* \
		"$root"/var/log/*.log "$root"/var/log/apt "$root"/usr/sbin/policy-rc.d
	printf '127.0.0.1 localhost\n' >"$root/etc/hosts"
	chroot "$root" dpkg-query -W -f '${Version}' "$package" | sed 's/^[0-9]*://; s/[-+~].*//'
}

# import creates an image from a chroot. Its tag is the release line.
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

declare -A wanted=() # images to build, by suite
suites=()
for image in "$@"; do
	suite=$(suite_of "$image") || { say "got the image $image, want one or more of: $all"; exit 1; }
	if [ "${FORCE:-0}" != 1 ] && built "$image"; then
		say "rabbitdelay/$(product_of "$image") from Debian $suite already exists"
		continue
	fi
	[ -n "${wanted[$suite]:-}" ] || suites+=("$suite")
	wanted[$suite]+=" $image"
done

declare -A building=() # suites by the ID of the process that builds them
# After an interrupt, stop the builds and wait until they have removed their chroots.
trap '[ ${#building[@]} = 0 ] || kill "${!building[@]}" 2>/dev/null || true; wait; exit 130' INT TERM

# finish_one waits until the build of a suite has finished, and prints the result.
finish_one() {
	local pid status=0
	wait -n -p pid "${!building[@]}" || status=$?
	local suite=${building[$pid]}
	unset "building[$pid]"
	grep '^built ' "$cache/$suite.log" | while read -r line; do say "$line"; done || true
	if [ $status != 0 ]; then
		say "warning: at least one of the images${wanted[$suite]} could not be built from Debian $suite; the end of $cache/$suite.log:"
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
		say "building the images${wanted[$suite]} from Debian $suite (log: $cache/$suite.log)"
		# shellcheck disable=SC2086 # a list of names without blanks
		build_suite "$suite" "$root" ${wanted[$suite]} >"$cache/$suite.log" 2>&1 </dev/null &
		building[$!]=$suite
	done
	while [ ${#building[@]} -gt 0 ]; do
		finish_one
	done
fi
trap - INT TERM

# unpack copies the programs of a RabbitMQ image to volumes, which the launcher mounts over the same folders. The
# storage driver fuse-overlayfs uses an additional process for every access to an image's files, and with volumes a
# broker starts in two thirds of the time. The last volume is created when the copies are complete, and its label is the
# image's ID.
unpack() {
	local image=$1 id volume dir mounts=()
	id=$(docker image inspect -f '{{.Id}}' "$image")
	volume=$(printf '%s' "$image" | tr '/:' '--')
	[ "$(docker volume inspect -f '{{index .Labels "rabbitdelay.image"}}' "$volume-complete" 2>/dev/null)" != "$id" ] || return 0
	docker volume rm "$volume-complete" "$volume-erlang" "$volume-rabbitmq" >/dev/null 2>&1 || true
	for dir in erlang rabbitmq; do
		mounts+=(-v "$volume-$dir:/usr/lib/$dir")
	done
	# Docker fills an empty volume with the image's files in that folder.
	docker run --rm "${mounts[@]}" "$image" true &&
		docker volume create --label "rabbitdelay.image=$id" "$volume-complete" >/dev/null
}

if [ "$(docker info -f '{{.Driver}}')" = fuse-overlayfs ]; then
	for image in $(docker image ls --filter dangling=false --format '{{.Repository}}:{{.Tag}}' rabbitdelay/rabbitmq); do
		unpack "$image" || say "warning: $image could not be copied to volumes, so its brokers will start more slowly"
	done
fi

for image in "$@"; do
	if built "$image"; then
		exit 0
	fi
done
say "none of the images could be built"
exit 1
