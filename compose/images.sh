#!/bin/sh
# images.sh    Build the targets `fleet` and `cpu` of the Dockerfile by buildah, as root, and print their tag. Where the
# base image cannot be pulled one is made of Debian's packages, with this machine's authorities, and the tag ends in
# `-debian`: it is not the image that others build.
set -eu
cd "$(dirname "$0")/.."
tag=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
python=docker.io/library/$(sed -n 's/^ARG PYTHON=//p' compose/Dockerfile)
set -- --isolation chroot --format docker --layers --file compose/Dockerfile
if ! buildah pull --quiet --retry 0 "$python" >&2; then
    python=localhost/debian-python:bookworm
    tag=$tag-debian
    set -- "$@" --volume /etc/ssl/certs:/etc/ssl/certs:ro
    if ! buildah inspect --type image "$python" > /dev/null 2>&1; then
        made=$(buildah from scratch) tar=$(mktemp --suffix .tar)
        trap 'rm -f "$tar"' EXIT
        mmdebstrap --quiet --variant=minbase --include=ca-certificates,python3-pip,python3-venv \
            --customize-hook='ln -s python3 "$1/usr/bin/python"; rm "$1"/usr/lib/python3.*/EXTERNALLY-MANAGED' \
            bookworm "$tar" >&2
        buildah add --quiet "$made" "$tar" / >&2
        buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$made"
        buildah commit --quiet --rm "$made" "$python" >&2
    fi
fi
buildah build "$@" --build-arg "PYTHON=$python" --target fleet --tag "localhost/pecia:$tag" . >&2
buildah build "$@" --build-arg "PYTHON=$python" --target cpu --tag "localhost/pecia-cpu:$tag" . >&2
echo "$tag"
