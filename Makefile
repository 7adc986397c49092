# dhcp-meta: everything a contributor types. `make` alone lists the targets.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-print-directory
# Debian keeps servers in /usr/sbin, which is not in everyone's PATH.
export PATH := $(PATH):/usr/sbin:/sbin
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/dhcp-meta/dhcp-meta/internal/build.version=$(VERSION)

# Programs that the tests and the demo run, and the Debian package of each.
DEPS := dnsmasq:dnsmasq-base kea-dhcp4:kea-dhcp4-server ip:iproute2 \
        dhcpd:isc-dhcp-server dhcrelay:isc-dhcp-relay nft:nftables \
        ping:iputils-ping nsenter:util-linux busybox:busybox gcc:gcc jq:jq \
        ovs-vswitchd:openvswitch-switch ovn-northd:ovn-central \
        ovn-controller:ovn-host ethtool:ethtool containerd:containerd runc:runc buildah:buildah \
        promtool:prometheus docker-registry:docker-registry skopeo:skopeo

# How long each fuzz target runs in `make fuzz`.
FUZZTIME ?= 3m

# How long `make soak` runs, and how many leases it keeps.
SOAK   ?= 30m
LEASES ?= 1000

# Which parts of the race `make bench-peers` runs, as in `go test -run`: add, waiting/nak.
# What the others found before is kept in bin/race.
RACE ?=

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## install what tests and demo need from Debian's packages, when it is missing
	@tests/install-deps $(DEPS)

.PHONY: vm-image
vm-image: ## build what the emulated node of tests/vm boots from, once, and install qemu (root)
	@tests/vm/image/build >/dev/null

.PHONY: build
build: ## build the programs, static, into bin/
	@mkdir -p bin
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

.PHONY: image
image: ## build the image for amd64 and arm64, as OCI archives in bin/ (root)
	@tests/install-deps buildah:buildah
	@images/build bin

.PHONY: demo
demo: deps build ## show the main job on real parts (root; about a minute)
	@PLUGINS=$$(tests/tool-cache plugins) BIN=$(CURDIR)/bin tests/demo/demo

.PHONY: test
test: deps vm-image lint unit fuzz-short integration ## all tests, as CI runs them (root)

.PHONY: lint
lint: ## formatting, vet, staticcheck, import rules
	@echo "== gofmt"; files=$$(gofmt -l .); [ -z "$$files" ] || { echo "not formatted (run gofmt -w):" $$files; exit 1; }
	@echo "== vet"; go vet ./...
	@echo "== staticcheck"; "$$(tests/tool-cache tools)/staticcheck" ./...
	@echo "== import rules"; go test ./internal/archtest/...

.PHONY: unit
unit: ## unit and simulated tests with the race detector (no root)
	go test -race -p 2 $$(go list ./... | grep -v /tests/)

# A test that fails beside all others runs once more, alone. One that passes then
# is named at the end as unsteady: it does not stop a change, and wants a mend.
.PHONY: integration
integration: ## both programs against real servers, kernels and clusters (root)
	@rm -f unsteady.txt
	@# The first time these are built, which takes ten minutes, no test's time limit runs.
	@for module in plugins kubernetes multus suite manifests-tools; do tests/tool-cache $$module >/dev/null; done
	DHCP_META_REQUIRE_ROOT=1 "$$(tests/tool-cache tools)/gotestsum" --format pkgname-and-test-fails \
		--rerun-fails=1 --rerun-fails-max-failures=4 --rerun-fails-run-root-test --rerun-fails-report=unsteady.txt \
		--packages ./tests/... -- -count=1 -timeout 20m -parallel 8
	@[ ! -s unsteady.txt ] || { echo "== unsteady: failed once, and passed alone"; cat unsteady.txt; }

.PHONY: playground
playground: deps ## a cluster of one node with Multus and a DHCP server, and a shell on the node (root)
	@for module in plugins kubernetes multus manifests-tools; do tests/tool-cache $$module >/dev/null; done
	@go test -c -o bin/playground ./tests/onenode
	@cd tests/onenode && DHCP_META_REQUIRE_ROOT=1 ../../bin/playground -test.run='^TestShell$$' -test.timeout=0 -shell

.PHONY: test-cluster
test-cluster: deps ## the installed thing on a real cluster of one node, and in front of OVN (root)
	@for module in plugins kubernetes multus manifests-tools; do tests/tool-cache $$module >/dev/null; done
	DHCP_META_REQUIRE_ROOT=1 go test -count=1 -timeout 20m -p 1 ./tests/onenode ./tests/ovnkube

.PHONY: manual
manual: ## write docs/reference.md from what the programs say of their flags
	go test -count=1 ./tests/manual -args -write

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (3m)
	@tests/fuzz $(FUZZTIME)

.PHONY: fuzz-short
fuzz-short: ## run the fuzz targets for seconds, the four most exposed for a minute
	@tests/fuzz 4s 60s

.PHONY: soak
soak: deps ## keep LEASES (1000) leases with a T1 of seconds for SOAK (30m) (root)
	DHCP_META_REQUIRE_ROOT=1 \
		go test -count=1 -timeout 0 -run '^TestSoak$$' -v ./tests/chaos -args -soak=$(SOAK) -soak-leases=$(LEASES)

.PHONY: bench
bench: deps vm-image build ## Go benchmarks, and the figures of docs/performance.md (root)
	go test -run '^$$' -bench . -benchmem $$(go list ./... | grep -v /tests/)
	DHCP_META_REQUIRE_ROOT=1 \
		go test -count=1 -timeout 60m -p 1 -run '^$$' -bench . -benchtime 1x ./tests/bench/... ./tests/vm

.PHONY: bench-peers
bench-peers: deps ## race the reference dhcp daemon for 25 minutes, or its part RACE; rewrites docs/performance.md (root)
	@tests/tool-cache plugins >/dev/null
	DHCP_META_REQUIRE_ROOT=1 \
		go test -count=1 -timeout 60m -parallel 8 -v -run '^TestRace$$/$(RACE)' ./tests/peers -args -peers-results=$(CURDIR)/bin/race

.PHONY: clean
clean: ## remove bin/ (the tool cache stays; it is below ~/.cache/dhcp-meta)
	rm -rf bin
