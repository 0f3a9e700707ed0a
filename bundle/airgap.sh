#!/usr/bin/env bash
# Everything that a site without internet needs, in one archive: images, chart, wheels, checksums, a guide.
#
#   bundle/airgap.sh [BASE_IMAGE]     BASE_IMAGE: a Debian 12 that the site's builder has (see the Dockerfile)
set -euo pipefail
cd "$(dirname "$0")/.."
base=${1:-debian:bookworm-slim}
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' gpualert/__init__.py)
name=gpualert-airgap-$version-$(uname -m)
kit=build/$name
builder=$(command -v buildah || command -v docker || { echo "airgap: needs buildah or docker" >&2; exit 1; })

rm -rf "$kit" && mkdir -p "$kit/images" "$kit/wheels"
./dev wheelhouse
cp wheelhouse/*.whl "$kit/wheels/"
.venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$kit/wheels" .
for target in gpualert gpualert-watch; do
    echo "airgap: building $target"
    if [ "${builder##*/}" = buildah ]; then
        buildah build --quiet --isolation chroot --build-arg BASE_IMAGE="$base" --target "$target" -t "localhost/$target:$version" . >/dev/null
        buildah push --quiet "localhost/$target:$version" "oci-archive:$kit/images/$target.oci.tar:$target:$version"
    else
        docker buildx build --quiet --build-arg BASE_IMAGE="$base" --target "$target" --output "type=oci,dest=$kit/images/$target.oci.tar,name=$target:$version" .
    fi
done
[ -d helm ] && cp -r helm "$kit/helm" && rm -rf "$kit"/helm/*.py "$kit/helm/__pycache__" # those are for developers
[ -d k8s ] && cp -r k8s "$kit/k8s"
cp LICENSE "$kit/"
sed "s/@VERSION@/$version/g" bundle/airgap.md >"$kit/INSTALL.md"
(cd "$kit" && find . -type f ! -name SHA256SUMS -print0 | sort -z | xargs -0 sha256sum >SHA256SUMS)
tar -C build --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-0}" -cf "build/$name.tar" "$name"
echo "build/$name.tar: $(du -h "build/$name.tar" | cut -f1)"
