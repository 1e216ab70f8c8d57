#!/usr/bin/env bash
# Prints the release notes of a version, which are its section in CHANGELOG.md:
#   .ci/release/notes.sh 0.2.0
# With --write, it first creates that section with today's date from the fragments in docs/changelog/, and removes them.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=${1:?usage: .ci/release/notes.sh VERSION [--write]}
kinds="Added Changed Fixed Removed Security"

fragments() { find docs/changelog -name '*.md' ! -name README.md | sort; }

# section prints the entries of the fragments, grouped by kind.
section() {
	for kind in $kinds; do
		local entries
		entries=$(fragments | xargs -r sed -n "s/^$kind: /- /p")
		[ -z "$entries" ] || printf '### %s\n\n%s\n\n' "$kind" "$entries"
	done
}

if [ "${2:-}" = --write ]; then
	if wrong=$(fragments | xargs -r grep -nHEv "^(${kinds// /|}): .|^$"); then
		printf 'release: got the lines\n%s\nwant each line to start with one of %s and a colon\n' "$wrong" "$kinds" >&2
		exit 1
	fi
	[ -n "$(section)" ] || { echo "release: docs/changelog/ contains no fragments, want at least one" >&2; exit 1; }
	! grep -q "^## $version," CHANGELOG.md || { echo "release: CHANGELOG.md already has a section for $version" >&2; exit 1; }
	first=$(grep -n '^## ' CHANGELOG.md | head -1 | cut -d: -f1)
	{
		head -n "$((first - 1))" CHANGELOG.md
		printf '## %s, %s\n\n' "$version" "$(date +%F)"
		section
		tail -n "+$first" CHANGELOG.md
	} >CHANGELOG.md.new
	mv CHANGELOG.md.new CHANGELOG.md
	fragments | xargs rm
fi

notes=$(awk -v version="$version" '/^## /{on = index($0, "## " version ",") == 1; next} on' CHANGELOG.md)
[ -n "$notes" ] || { echo "release: CHANGELOG.md has no section for $version" >&2; exit 1; }
echo "$notes"
