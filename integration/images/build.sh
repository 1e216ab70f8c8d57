#!/usr/bin/env bash
# Builds the local RabbitMQ images that the integration suite runs against, from Debian's own
# packages, for machines that cannot pull from a container registry. Each Debian suite carries one
# RabbitMQ line, so each suite gives one image:
#
#   bookworm -> rabbitdelay/rabbitmq:3.10
#   trixie   -> rabbitdelay/rabbitmq:4.0
#   sid      -> rabbitdelay/rabbitmq:4.3
#
# usage: build.sh [VERSION...]      e.g. build.sh 4.0; without arguments all of them
#
#   FORCE=1     build again although the image exists
#   JOBS=N      images built at the same time, 2 unless given
#   CACHE_DIR   where the chroots and logs go, .cache/images of the repository unless given
#
# A version that cannot be built is a warning; the exit status is 1 only when no image is there in
# the end.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
repo=$(cd "$here/../.." && pwd)
cache=${CACHE_DIR:-$repo/.cache/images}
jobs=${JOBS:-2}
name=rabbitdelay/rabbitmq

suite_of() {
	case $1 in
	3.10) echo bookworm ;;
	4.0) echo trixie ;;
	4.3) echo sid ;;
	*) return 1 ;;
	esac
}

say() { printf 'images: %s\n' "$*" >&2; }

# Images are found by the suite they were built from and not by their tag: sid moves on, and the
# tag always tells the version that is really inside.
built() { [ -n "$(docker image ls -q --filter "label=rabbitdelay.suite=$1")" ]; }

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

# build_one runs in a subshell of its own, with its output in a log.
build_one() {
	local suite=$1 root=$2
	trap 'remove_root "$root"' EXIT
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
	chroot "$root" apt-get install -y -qq --no-install-recommends rabbitmq-server

	local version
	version=$(chroot "$root" dpkg-query -W -f '${Version}' rabbitmq-server)

	rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/var/cache/debconf/*-old \
		"$root"/usr/share/doc/* "$root"/usr/share/man/* "$root"/usr/share/info/* "$root"/usr/share/locale/* \
		"$root"/var/log/*.log "$root"/var/log/apt "$root"/usr/sbin/policy-rc.d \
		"$root"/var/lib/rabbitmq/* "$root"/var/lib/rabbitmq/.erlang.cookie
	printf '127.0.0.1 localhost\n' >"$root/etc/hosts"
	install -D -m 644 "$here/rabbitmq.conf" "$root/etc/rabbitmq/rabbitmq.conf"
	install -D -m 644 "$here/enabled_plugins" "$root/etc/rabbitmq/enabled_plugins"
	install -m 755 "$here/entrypoint.sh" "$root/usr/local/bin/rabbitmq-foreground"
	mkdir -p "$root/etc/rabbitmq/conf.d" "$root/plugins"

	# Debian writes 4.0.5-8 or 3.10.8-1.1; the tag is the release line.
	local upstream=${version%%-*}
	upstream=${upstream#*:}
	upstream=${upstream%%[+~]*}
	local tag
	tag=$(printf '%s' "$upstream" | cut -d. -f1,2)

	tar -C "$root" --numeric-owner --exclude=./proc/* --exclude=./sys/* --exclude=./dev/* -c . |
		docker import \
			--change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
			--change 'ENV HOME=/var/lib/rabbitmq' \
			--change 'ENV LANG=C.UTF-8' \
			--change 'ENV RABBITMQ_NODENAME=rabbit@localhost' \
			--change 'EXPOSE 5672 15672' \
			--change 'VOLUME /var/lib/rabbitmq' \
			--change 'CMD ["/usr/local/bin/rabbitmq-foreground"]' \
			--change "LABEL rabbitdelay.suite=$suite" \
			--change "LABEL rabbitdelay.version=$upstream" \
			- "$name:$tag" >/dev/null
	echo "built $name:$tag ($version)"
}

need_docker
[ $# -gt 0 ] || set -- 3.10 4.0 4.3

missing=()
for v in "$@"; do
	suite=$(suite_of "$v") || { say "no Debian suite carries RabbitMQ $v; known: 3.10, 4.0, 4.3"; exit 1; }
	if [ "${FORCE:-0}" != 1 ] && built "$suite"; then
		say "$name:$v is there"
	else
		missing+=("$v")
	fi
done

if [ ${#missing[@]} -gt 0 ]; then
	need_debootstrap
	mkdir -p "$cache"
	pids=()
	# An interrupted build leaves neither processes nor a chroot behind.
	trap '[ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null || true; wait; exit 130' INT TERM

	queue=("${missing[@]}")
	while [ ${#queue[@]} -gt 0 ]; do
		batch=("${queue[@]:0:$jobs}")
		queue=("${queue[@]:$jobs}")
		pids=()
		for v in "${batch[@]}"; do
			suite=$(suite_of "$v")
			root=$(mktemp -d "$cache/$suite.XXXXXX")
			chmod 755 "$root"
			say "building $name:$v from Debian $suite (log: $cache/$v.log)"
			build_one "$suite" "$root" >"$cache/$v.log" 2>&1 </dev/null &
			pids+=($!)
		done
		for i in "${!batch[@]}"; do
			v=${batch[$i]}
			if wait "${pids[$i]}"; then
				say "$(tail -n 1 "$cache/$v.log")"
			else
				say "warning: $name:$v could not be built; the end of $cache/$v.log:"
				tail -n 15 "$cache/$v.log" | sed 's/^/    /' >&2
			fi
		done
	done
	trap - INT TERM
fi

for v in "$@"; do
	if built "$(suite_of "$v")"; then
		exit 0
	fi
done
say "no image could be built"
exit 1
