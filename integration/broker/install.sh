#!/bin/sh
# Installs Debian packages without asking questions and without starting their services, because the tests start private
# servers.
#
# usage: install.sh PACKAGE...      skips packages that are already installed
set -eu

missing=
for p in "$@"; do
	if [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true)" != installed ]; then
		missing="$missing $p"
	fi
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
	echo "packages are missing; run as root: apt-get install$missing" >&2
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
# A new machine has no package lists, and on other machines the installation can fail because the lists are old.
if [ -z "$(find /var/lib/apt/lists -name '*_Packages*' 2>/dev/null | head -n 1)" ]; then
	apt-get update -q
	install
else
	install || { apt-get update -q && install; }
fi
