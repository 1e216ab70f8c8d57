#!/bin/sh
# Installs Debian packages without a question and without starting what they bring: the tests start
# private servers of their own, and a service on the standard port is nobody's wish.
#
# usage: install.sh PACKAGE...      packages that are installed already are left alone
set -eu

missing=
for p in "$@"; do
	if [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true)" != installed ]; then
		missing="$missing $p"
	fi
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
	echo "these packages are missing:$missing; run as root: apt-get install$missing" >&2
	exit 1
fi

policy=/usr/sbin/policy-rc.d
kept=
restore() {
	if [ -n "$kept" ]; then
		mv -f "$kept" "$policy"
	else
		rm -f "$policy"
	fi
}
if [ -e "$policy" ] || [ -L "$policy" ]; then
	kept=$policy.rabbitdelay.$$
	mv "$policy" "$kept"
fi
trap restore EXIT
trap 'exit 130' INT TERM
printf '#!/bin/sh\nexit 101\n' >"$policy"
chmod 755 "$policy"

export DEBIAN_FRONTEND=noninteractive
install() {
	# shellcheck disable=SC2086 # a list of names without blanks
	apt-get install -y -q --no-install-recommends -o Dpkg::Use-Pty=0 $missing
}
echo "installing:$missing" >&2
# A fresh machine has no package lists, a long-lived one has old ones; both show as a failure here.
if [ -z "$(find /var/lib/apt/lists -name '*_Packages*' 2>/dev/null | head -n 1)" ]; then
	apt-get update -q
	install
else
	install || { apt-get update -q && install; }
fi
