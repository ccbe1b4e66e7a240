# The binary is static, so the image holds nothing else. Where there is buildah,
# "make image" builds the binary itself and takes only the second stage from here.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS TARGETARCH VERSION=v0.1.0-dev
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN GOOS=$TARGETOS GOARCH=$TARGETARCH make build PREFIX=/out VERSION=$VERSION

FROM scratch
COPY --from=build /out/nodeprobe /nodeprobe
ENTRYPOINT ["/nodeprobe"]
CMD ["run"]
