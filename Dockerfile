# Two images from one bundle: `gpualert` (wrap, install, inject, flush) and `gpualert-watch` (with the Kubernetes client).
#
#   docker build --target gpualert -t gpualert .
#   docker build --target gpualert-watch -t gpualert-watch .
#
# Without a network: a base that has python3, gcc and musl-tools, and wheels in ./wheelhouse (`./dev wheelhouse`).

# What the bundle is made from: its interpreter and libraries come from here.
ARG BASE_IMAGE=debian:bookworm-slim

FROM ${BASE_IMAGE} AS build
RUN command -v python3 >/dev/null && command -v musl-gcc >/dev/null || { \
        apt-get update && \
        DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
            python3 python3-pip ca-certificates binutils gcc libc6-dev musl-tools && \
        rm -rf /var/lib/apt/lists/*; }
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY bundle bundle
COPY gpualert gpualert
# The pattern matches one file that is always there, so that the directory may be missing.
COPY pyproject.toml wheelhouse* wheelhouse/
ARG SOURCE_DATE_EPOCH=0
RUN SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} python3 bundle/build.py --output /gpualert --wheelhouse wheelhouse
RUN mkdir -p /root-of-it/tmp /root-of-it/var/log/gpualert /root-of-it/etc && \
    chmod 1777 /root-of-it/tmp && chmod 0777 /root-of-it/var/log/gpualert && \
    printf 'root:x:0:0:root:/:/gpualert/bin/gpualert\nnonroot:x:65532:65532:nonroot:/tmp:/gpualert/bin/gpualert\n' >/root-of-it/etc/passwd && \
    printf 'root:x:0:\nnonroot:x:65532:\n' >/root-of-it/etc/group

FROM build AS build-watch
ARG SOURCE_DATE_EPOCH=0
RUN rm -rf /gpualert && \
    SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} python3 bundle/build.py --cluster --output /gpualert --wheelhouse wheelhouse

FROM scratch AS gpualert
COPY --from=build /root-of-it/ /
COPY --from=build /gpualert /gpualert
ENV PATH=/gpualert/bin
LABEL org.opencontainers.image.title="gpualert" \
      org.opencontainers.image.description="Runs a training command, keeps its output, says why it failed, tells a person" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 65532:65532
ENTRYPOINT ["/gpualert/bin/gpualert", "run", "--"]

FROM scratch AS gpualert-watch
COPY --from=build /root-of-it/ /
COPY --from=build-watch /gpualert /gpualert
ENV PATH=/gpualert/bin
LABEL org.opencontainers.image.title="gpualert-watch" \
      org.opencontainers.image.description="Watches a cluster's Jobs and names the rank that broke first" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 65532:65532
ENTRYPOINT ["/gpualert/bin/gpualert"]
