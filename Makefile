# "make" lists the targets.
.DEFAULT_GOAL := help
.NOTPARALLEL:
SHELL := /bin/sh

# nft is not in an ordinary user's path; programs need no version stamp.
export PATH := $(PATH):/usr/local/sbin:/usr/sbin:/sbin
export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false)

LINT := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
TEST := go run ./internal/house/skipcheck -count=1 -shuffle=on -timeout=20m
STEP := .ci/step

# Modules of their own, so that importers do not need what these need.
NESTED := allocator/etcdstore internal/peer
NESTEDTEST := go run github.com/vipkit/vipkit/internal/house/skipcheck -count=1 -shuffle=on -timeout=10m

BENCHTIME ?= 1s
FUZZTIME ?= 30s
STORMTIME ?= 2m
STORMRATE ?= 500
STORMFOLDER ?= /tmp

# Packages that touch the kernel run without the race detector, which slows
# them down without seeing what is on the other side.
KERNEL := /backends/iptables|/backends/nftables|/backends/backendtest|/internal/differential|/internal/storm|/internal/nfnetlink|/internal/netns|/examples/

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' Makefile

.PHONY: test
test: install check lint cross examples bench-once race nested peer ## install what the tests need, check everything, run all tests
	@STEP_QUIET=1 $(STEP) 'all tests' $(TEST) ./...

.PHONY: install
install:
	@.ci/install nft=nftables iptables-nft-restore=iptables etcd=etcd-server

.PHONY: check
check:
	@$(STEP) 'gofmt' sh -c 'found=$$(gofmt -l .); [ -z "$$found" ] || { echo "$$found"; exit 1; }'
	@$(STEP) 'go mod verify' go mod verify
	@$(STEP) 'go mod tidy' go mod tidy -diff
	@$(STEP) 'house rules' go test -count=1 ./internal/house
	@for os in linux windows darwin; do $(STEP) "go vet for $$os" env GOOS=$$os CGO_ENABLED=0 go vet -tags measure ./... || exit 1; done
	@for module in $(NESTED); do \
		$(STEP) "go mod tidy in $$module" .ci/tidy $$module && \
		$(STEP) "go vet in $$module" go -C $$module vet ./... || exit 1; \
	done
	@$(STEP) 'go vet in allocator/etcdstore for windows' env GOOS=windows CGO_ENABLED=0 go -C allocator/etcdstore vet ./...

.PHONY: lint
lint: ## run golangci-lint
	@$(STEP) 'golangci-lint' $(LINT) run
	@for module in $(NESTED); do \
		$(STEP) "golangci-lint in $$module" sh -c 'cd $$0 && $(LINT) run --config=$(CURDIR)/.golangci.yml' $$module || exit 1; \
	done

.PHONY: cross
cross:
	@for target in windows/amd64 linux/arm64; do \
		$(STEP) "test binaries for $$target" env CGO_ENABLED=0 GOOS=$${target%/*} GOARCH=$${target#*/} \
			go test -c -o /dev/null ./... || exit 1; \
	done

.PHONY: examples
examples:
	@for example in quickstart; do \
		[ ! -d examples/$$example ] || $(STEP) "examples/$$example" timeout 120 go run ./examples/$$example || exit 1; \
	done

.PHONY: bench-once
bench-once:
	@$(STEP) 'each benchmark once' go test -run '^$$' -bench . -benchtime 1x ./...

.PHONY: race
race:
	@if command -v cc >/dev/null 2>&1 || [ "$$CI" = true ]; then \
		$(STEP) 'tests with the race detector' env CGO_ENABLED=1 \
			$(TEST) -race $$(go list ./... | grep -vE '$(KERNEL)'); \
	else echo '==> no C compiler: tests with the race detector are left out'; fi

.PHONY: nested
nested:
	@cd allocator/etcdstore && STEP_QUIET=1 ../../$(STEP) 'tests of allocator/etcdstore' $(NESTEDTEST) ./...

# The programs are built first, so that the time limit is for the tests alone.
.PHONY: peer
peer: ## run the tests with Kubernetes: an API server, kube-proxy
	@.ci/install etcd=etcd-server nft=nftables iptables-nft-restore=iptables
	@$(STEP) 'build kube-apiserver and kube-proxy' go -C internal/peer build -o /dev/null \
		k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kube-proxy
	@cd internal/peer && STEP_QUIET=1 ../../$(STEP) 'tests with Kubernetes' \
		$(NESTEDTEST) -p 1 -timeout=20m ./...

.PHONY: bench
bench: ## run all benchmarks (BENCHTIME=1s)
	go test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) ./...

.PHONY: fuzz
fuzz: ## run each fuzz target for a while (FUZZTIME=30s)
	@grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed 's/:func / /' | while read -r file name; do \
		$(STEP) "$$name in $$(dirname $$file)" \
			go test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) "$$(dirname $$file)" </dev/null || exit 1; \
	done

# STEPS=file plays the history of a file again; with REDUCE=1, as few of its steps
# as fail, too, are written to file.reduced, as far as that gets within STORMTIME.
.PHONY: storm
storm: ## have everything go wrong at once, for each backend or one (STORMTIME=2m BACKEND=nftables)
	VIPKIT_STORM_BACKEND=$(BACKEND) VIPKIT_STORM_TIME=$(STORMTIME) VIPKIT_STORM_RATE=$(STORMRATE) VIPKIT_STORM_FOLDER=$(STORMFOLDER) \
	VIPKIT_STORM_REPLAY=$(abspath $(STEPS)) VIPKIT_STORM_REDUCE=$(REDUCE) \
		go test -count=1 -timeout=0 -v -run '^TestStorm$$' ./internal/storm

.PHONY: table
table: ## write the README's table of capabilities, by running the conformance suite
	VIPKIT_UPDATE=1 go test -count=1 -p 1 -run '^TestConformance' ./backends/...

.PHONY: worlds
worlds: ## run all of the conformance suite on all kinds of nodes
	VIPKIT_EVERYTHING=1 $(TEST) -v -timeout=60m -p 1 -run '^TestConformance' ./backends/nftables ./backends/iptables ./backends/userspace

.PHONY: fmt
fmt: ## format all code
	$(LINT) fmt

.PHONY: clean
clean: ## remove what builds and tests left behind
	go clean ./...
	go clean -testcache
	rm -f *.test *.prof *.out
