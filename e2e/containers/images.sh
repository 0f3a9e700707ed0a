#!/usr/bin/env bash
# The images of the container tests, made without any registry: bases by debootstrap, gpualert by its own Dockerfile.
# Idempotent; what is there already is kept, but gpualert itself is always built anew.
set -euo pipefail
cd "$(dirname "$0")/../.."
prefix=${GPUALERT_E2E_IMAGES:-localhost/gpualert-e2e} # of its own, where several checkouts share a machine
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

import() { tar -C "$1" -c . | podman import --quiet - "$2" >/dev/null; }

debian() { # NAME SUITE PACKAGES
    podman image exists "$prefix/$1" && return
    echo "making $prefix/$1 (Debian $2)"
    for attempt in 1 2 3; do # a mirror may stumble
        rm -rf "${work:?}/$1"
        debootstrap --variant=minbase ${3:+--include=$3} "$2" "$work/$1" >"$work/log" 2>&1 && break
        [ "$attempt" -lt 3 ] || { tail -20 "$work/log" >&2; exit 1; }
    done
    rm -rf "$work/$1"/var/cache/apt/archives/*.deb "$work/$1"/var/lib/apt/lists/*
    import "$work/$1" "$prefix/$1"
    rm -rf "${work:?}/$1"
}

debian build bookworm python3,ca-certificates,gcc,libc6-dev,musl-tools,binutils
debian bookworm bookworm python3
debian trixie trixie
debian bullseye bullseye

if ! podman image exists "$prefix/musl"; then # a musl world: its loader and library, and a static busybox
    mkdir -p "$work/musl"/{bin,lib,tmp,etc,proc,dev}
    cp "$(command -v busybox)" "$work/musl/bin/busybox"
    for name in sh env cat sleep true false kill ls id; do ln -s busybox "$work/musl/bin/$name"; done
    cp -L /lib/ld-musl-*.so.1 "$work/musl/lib/"
    import "$work/musl" "$prefix/musl"
fi
if ! podman image exists "$prefix/empty"; then # nothing at all but a program of 1 MB to run
    mkdir -p "$work/empty/job"
    cp "$(command -v busybox)" "$work/empty/job/busybox"
    import "$work/empty" "$prefix/empty"
fi

./dev wheelhouse
buildah build --quiet --isolation chroot --build-arg BASE_IMAGE="$prefix/build" --target gpualert -t "$prefix/gpualert" . >/dev/null

buildah build --quiet --isolation chroot --build-arg BASE_IMAGE="$prefix/build" --target gpualert-watch -t "$prefix/gpualert-watch" . >/dev/null

if ! podman image exists "$prefix/training"; then # a training image with a Python of its own and an older pydantic
    python3 -m pip --disable-pip-version-check --quiet download --no-deps --only-binary :all: -d "$work" 'pydantic<2' 'typing-extensions' ||
        .venv/bin/python -m pip --disable-pip-version-check --quiet download --no-deps --only-binary :all: -d "$work" 'pydantic<2' 'typing-extensions'
    mkdir "$work/opt"
    for wheel in "$work"/*.whl; do python3 -m zipfile -e "$wheel" "$work/opt"; done
    container=$(buildah from "$prefix/bookworm")
    buildah copy --quiet "$container" "$work/opt" /opt/train >/dev/null
    buildah config --env PYTHONPATH=/opt/train --env LD_LIBRARY_PATH=/opt/train/lib --env LD_PRELOAD=/opt/train/missing.so "$container"
    buildah commit --quiet "$container" "$prefix/training" >/dev/null
    buildah rm "$container" >/dev/null
fi
# The training image with gpualert as its entrypoint, as a user's Dockerfile would have it.
printf 'FROM %s\nCOPY --from=%s /gpualert /gpualert\nENTRYPOINT ["/gpualert/bin/gpualert","run","--"]\n' \
    "$prefix/training" "$prefix/gpualert" >"$work/Dockerfile"
buildah build --quiet --isolation chroot -f "$work/Dockerfile" -t "$prefix/wrapped" "$work" >/dev/null
podman images --format '{{.Repository}} {{.Size}}' | grep "^$prefix"
