#!/usr/bin/env bash
# Builds the files of a release from the commit that is checked out, without publishing them:
#   .ci/release/build.sh 0.1.0 [DIR]    builds in DIR, by default dist
# Archives and packages are reproducible: the same commit and Go version give the same bytes on every machine. The
# script needs go, jq, zip and dpkg-deb. It needs no network if Go's modules are in the module cache. With
# PLATFORMS="linux/amd64 linux/arm64" it builds only for these platforms.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=${1:?usage: .ci/release/build.sh VERSION [DIR]}
dist=${2:-dist}
platforms=${PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64}

[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] ||
	{ echo "release: got the version $version, want one such as 0.1.0 or 0.2.0-rc.1, without a v" >&2; exit 1; }
for tool in go jq zip dpkg-deb; do
	command -v "$tool" >/dev/null || { echo "release: $tool is not installed" >&2; exit 1; }
done
[ ! -e "$dist" ] || { echo "release: $dist already exists; remove it, or choose another folder" >&2; exit 1; }

umask 022
export CGO_ENABLED=0 TZ=UTC LC_ALL=C
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
mkdir -p "$dist"
dist=$(cd "$dist" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

build() { # OS ARCH FILE
	GOOS=$1 GOARCH=$2 go build -trimpath -buildvcs=true -o "$3" \
		-ldflags "-s -w -buildid= -X github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/cli.version=v$version" ./cmd/rabbitdelay
}

# dated sets the modification time of all files in a folder to the time of the commit.
dated() { find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +; }

# sbom prints the modules that a binary contains, as recorded by Go, in the format CycloneDX.
sbom() { # FILE OS ARCH
	go version -m -json "$1" | jq --arg version "v$version" --arg os "$2" --arg arch "$3" '
		def purl($path; $v): "pkg:golang/\($path)@\($v)?goarch=\($arch)&goos=\($os)&type=module";
		def component($path; $v): {"bom-ref": purl($path; $v), name: $path, version: $v, purl: purl($path; $v)};
		{bomFormat: "CycloneDX", specVersion: "1.6", version: 1,
			metadata: {component: ({type: "application"} + component(.Main.Path; $version))},
			components: ([{type: "library"} + component("std"; .GoVersion | sub("^go"; "v"))] +
				[.Deps[] | .Replace // . | {type: "library"} + component(.Path; .Version)])}'
}

# debian builds a package from a folder that contains the binary and the completions.
debian() { # FOLDER ARCH FILE
	local root=$work/deb-$2
	install -D -m 755 "$1/rabbitdelay" "$root/usr/bin/rabbitdelay"
	install -D -m 644 "$1/completions/rabbitdelay.bash" "$root/usr/share/bash-completion/completions/rabbitdelay"
	install -D -m 644 "$1/completions/rabbitdelay.zsh" "$root/usr/share/zsh/vendor-completions/_rabbitdelay"
	install -D -m 644 "$1/completions/rabbitdelay.fish" "$root/usr/share/fish/vendor_completions.d/rabbitdelay.fish"
	install -D -m 644 LICENSE "$root/usr/share/doc/rabbitdelay/copyright"
	mkdir "$root/DEBIAN"
	cat >"$root/DEBIAN/control" <<-END
		Package: rabbitdelay
		Version: ${version/-/\~}
		Architecture: $2
		Maintainer: The rabbitdelay authors <rabbitdelay@users.noreply.github.com>
		Installed-Size: $(du -sk --apparent-size "$root/usr" | cut -f1)
		Section: net
		Priority: optional
		Homepage: https://github.com/rabbitdelay/rabbitdelay
		Description: delayed messages and scheduled tasks on a stock RabbitMQ
		 The command line of rabbitdelay: topology, messages, tasks, and a server with
		 relay, console and HTTP API.
	END
	dated "$root"
	dpkg-deb --root-owner-group -Zgzip --build "$root" "$3" >/dev/null
}

# The program itself writes the completions, so build it for this machine first.
build "" "" "$work/here"
mkdir "$work/completions"
for shell in bash zsh fish; do
	"$work/here" completion "$shell" >"$work/completions/rabbitdelay.$shell"
done
"$work/here" completion powershell >"$work/completions/rabbitdelay.ps1"

for platform in $platforms; do
	os=${platform%/*} arch=${platform#*/}
	name=rabbitdelay_${version}_${os}_${arch}
	folder=$work/$name
	binary=rabbitdelay
	[ "$os" != windows ] || binary=rabbitdelay.exe
	mkdir "$folder"
	build "$os" "$arch" "$folder/$binary"
	sbom "$folder/$binary" "$os" "$arch" >"$dist/$name.cdx.json"
	cp -r "$work/completions" LICENSE README.md CHANGELOG.md "$folder"
	dated "$folder"
	if [ "$os" = windows ]; then
		(cd "$work" && find "$name" | sort | zip -qX -@ "$dist/$name.zip")
	else
		tar -C "$work" --sort=name --format=gnu --owner=0 --group=0 --numeric-owner -cf - "$name" | gzip -9n >"$dist/$name.tar.gz"
	fi
	if [ "$os" = linux ]; then
		debian "$folder" "$arch" "$dist/rabbitdelay_${version}_$arch.deb"
		install -D "$folder/rabbitdelay" "$work/image/$platform/rabbitdelay"
	fi
done

# Homebrew's formula contains the checksums of the archives. The image's build context has one folder for each platform.
if [[ " $platforms " == *" darwin/arm64 "* && " $platforms " == *" darwin/amd64 "* ]]; then
	formula=$(<.ci/release/formula.rb)
	for name in darwin_arm64 darwin_amd64 linux_arm64 linux_amd64; do
		sum=$(sha256sum "$dist/rabbitdelay_${version}_$name.tar.gz" | cut -d' ' -f1)
		formula=${formula//@$name@/$sum}
	done
	echo "${formula//@version@/$version}" >"$dist/rabbitdelay.rb"
fi
(cd "$dist" && sha256sum -- * >SHA256SUMS) # includes the formula
if [ -d "$work/image" ]; then
	cp /etc/ssl/certs/ca-certificates.crt cmd/rabbitdelay/Dockerfile "$work/image/"
	mv "$work/image" "$dist/image"
fi
ls -l "$dist"
