# The binary is static, so the image holds nothing else.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS TARGETARCH VERSION=v0.1.0-dev
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags "-s -w -X main.release=$VERSION" -o /nodeprobe ./cmd/nodeprobe

FROM scratch
COPY --from=build /nodeprobe /nodeprobe
ENTRYPOINT ["/nodeprobe"]
CMD ["run"]
