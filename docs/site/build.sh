#!/bin/sh
# Builds the documents as web pages: build.sh OUT. It fails if a link leads nowhere.
#
# MkDocs needs the documents in a separate folder, so they are copied to .cache/site first. The README is the
# first page. hooks.py changes the links that lead out of docs, and checks those of the pages.
set -eu

out=$1
cd "$(dirname "$0")/../.."
if ! command -v mkdocs >/dev/null; then
	echo "site: mkdocs is missing; install the packages mkdocs and mkdocs-material, of Debian or of PyPI" >&2
	exit 1
fi
pages=.cache/site
rm -rf "$pages"
mkdir -p "$pages"
cp -R docs/. "$pages/"
rm -rf "$pages/site"
cp docs/site/site.css "$pages/"
cp README.md "$pages/index.md"
cp README.zh-CN.md "$pages/zh-CN/index.md"
cp CHANGELOG.md CONTRIBUTING.md SECURITY.md "$pages/"
mkdocs build --quiet --strict --config-file docs/site/mkdocs.yml --site-dir "$out"
echo "site: $(find "$out" -name '*.html' | wc -l) pages in $out"
