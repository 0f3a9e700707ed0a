#!/usr/bin/env bash
# A kind cluster with the tests' images in it; for machines with docker and a registry.
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=localhost/gpualert-e2e
docker build --quiet --target gpualert -t "$prefix/gpualert:latest" . >/dev/null
docker build --quiet -t "$prefix/bookworm:latest" - <<<'FROM python:3.12-slim-bookworm' >/dev/null
docker build --quiet -t "$prefix/wrapped:latest" - >/dev/null <<EOF
FROM $prefix/bookworm:latest
COPY --from=$prefix/gpualert:latest /gpualert /gpualert
ENTRYPOINT ["/gpualert/bin/gpualert","run","--"]
EOF
kind get clusters | grep -qx gpualert-e2e || kind create cluster --name gpualert-e2e --config e2e/kind.yaml
for image in gpualert bookworm wrapped; do kind load docker-image --name gpualert-e2e "$prefix/$image:latest"; done
