# "make" lists the targets.
.DEFAULT_GOAL := help
.NOTPARALLEL:
SHELL := /bin/sh

# Ordinary users do not have nft in their path. -buildvcs=false: no version stamp.
export PATH := $(PATH):/usr/local/sbin:/usr/sbin:/sbin
export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false)

LINT := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
VULN := golang.org/x/vuln/cmd/govulncheck@v1.9.0
CYCLONEDX := github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
# Steps of their own run go vet.
TEST := go run ./internal/house/skipcheck -vet=off -count=1 -shuffle=on -timeout=20m
# Most tests of the quick lane wait: more packages at once than processors.
QUICK := -short -p 4
STEP := .ci/step

# Modules of their own, so that importers do not need their dependencies. Those that users get have tests
# that run without the programs of Kubernetes.
AGENT := examples/kubeproxy
PUBLISHED := allocator/etcdstore $(AGENT)
NESTED := $(PUBLISHED) internal/peer
NESTEDTEST := go run github.com/vipkit/vipkit/internal/house/skipcheck -vet=off -count=1 -shuffle=on -timeout=10m

BENCHTIME ?= 1s
FUZZTIME ?= 30s
IMAGE ?= kubeproxy-image
SBOM ?= sbom.json
STORMTIME ?= 2m
SOAKS ?= 10
# A storm of ipvs runs in a virtual machine, of which only the output stays. Of its two processors,
# the thread that decides about system calls must get a part soon: hence GOMAXPROCS.
IPVSSTORM := $(findstring ipvs,$(BACKEND)$(STEPS))
# A storm that takes longer than STORMLIMIT ends with the stacks of its goroutines. 0: no limit.
STORMLIMIT ?= 0
STORMRATE ?= $(if $(IPVSSTORM),100,500)
STORMFOLDER ?= $(if $(IPVSSTORM),-,/tmp)
ALLKERNELS := 6.1 6.12
ALLBACKENDS := nftables iptables userspace ipvs
ALLSTORMS := nftables iptables-nft iptables-legacy userspace ipvs ipvs-legacy
KERNELS ?= $(ALLKERNELS)
BACKENDS ?= $(ALLBACKENDS)
# $(call known,NAME,ALL) ends make if the variable NAME is empty or has a word that is not in ALL.
known = $(if $(strip $($(1))),,$(error $(1) is empty, want some of: $(2)))$(foreach word,$($(1)),$(if $(filter $(word),$(2)),,$(error $(1): unknown name "$(word)", want some of: $(2))))
# $(call flag,NAME) ends make if the variable NAME is neither 1 nor empty.
flag = $(if $(filter-out 1,$($(1))),$(error $(1): got "$($(1))", want 1 or nothing))
IPVS := ./backends/ipvs ./internal/kernel/ipvs
# Of the examples, only tests with the build tag ipvs run in a virtual machine.
IPVSFILES = $(shell grep -rl '^//go:build ipvs' --include='*_test.go' examples)
IPVSEXAMPLES = $(addprefix ./,$(filter-out $(AGENT)/%,$(sort $(dir $(IPVSFILES)))))
IPVSTESTS = $(shell sed -n 's/^func \(Test[A-Za-z0-9]*\).*/^\1$$/p' $(IPVSFILES) | paste -sd '|' -)
# The packages of this module that have benchmarks.
BENCHMARKS = $(addprefix ./,$(sort $(dir $(shell git grep -l '^func Benchmark' -- '*_test.go' $(NESTED:%=':!%')))))
# One user cannot replace the program of another one.
VM := $(or $(TMPDIR),/tmp)/vipkit-vm-$(shell id -u)
# Only modules that the kernel does not load when a program needs them, and ip_vs for its sysctls.
INVM := -p 1 -timeout=90m -exec '$(VM) -modules br_netfilter,ip_vs -kernel
WINEPROGRAMS := /usr/lib/wine/wine64=wine64 x86_64-w64-mingw32-gcc=gcc-mingw-w64-x86-64
VMPROGRAMS := qemu-system-x86_64=qemu-system-x86 busybox=busybox-static depmod=kmod ipvsadm=ipvsadm ipset=ipset

# What Windows can run, first what takes longest. The tests that Wine cannot run are in
# .ci/wine/left-out, with the reasons.
WINDOWS := ./proxy/manifest ./backends/kernelspace/... ./backends ./proxy/... ./affinity ./allocator/... \
	./endpoints ./internal/hcnschema ./internal/ipaddr ./internal/pause ./internal/pmap ./internal/testing/simhns ./internal/testing/testenv \
	./backends/userspace/... ./examples/manifestproxy
WINDOWSTESTS = $(shell sed -n 's/^\(Test[^:]*\):.*/^\1$$/p' .ci/wine/left-out | paste -sd '|' -)
HASCC := { command -v cc >/dev/null 2>&1 || [ "$$CI" = true ]; }
SKIPCHECK := $(or $(TMPDIR),/tmp)/vipkit-skipcheck-$(shell id -u)

# Its tests start virtual machines.
EMULATED := /internal/testing/vm$$
# The parts of the conformance suite on other kinds of nodes, and the capability table, which needs them.
WORLDSREPORT := ^TestConformance.*/^(Worlds|Report)$$|^TestConformance/^(legacy|nft)$$/^(Worlds|Report)$$
CONFORMING := ./backends/nftables ./backends/iptables ./backends/userspace

# These packages run without the race detector, which slows them down and does not see the kernel; the last two
# have no goroutines. All others run with it alone, except the house rules, a step of their own. The backend
# userspace runs in both ways, because other kinds of nodes differ in the kernel alone.
NORACE := /backends/internal/xtables|/backends/iptables|/backends/nftables|/backends/backendtest|/internal/testing/differential|/internal/testing/storm|/internal/kernel/nfnetlink|/internal/kernel/netns|/internal/testing/netnstest|/examples/|/endpoints$$|/proxy/manifest$$

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' Makefile

# Before each commit.
.PHONY: test
test: install check apidiff lint examples bench-once tests ## install what the tests need, check everything, run all tests of this kernel

.PHONY: tests
tests: race nested
	@STEP_QUIET=1 $(STEP) "$$($(HASCC) && echo 'tests without the race detector' || echo 'all tests')" \
		$(TEST) $$($(HASCC) && go list ./... | grep -E '$(NORACE)|/backends/userspace$$' || go list ./... | grep -v '$(EMULATED)')

# While working. Of nftables, iptables and userspace, the conformance suite on one kind of node. With
# -short, random tests repeat less.
.PHONY: quick
quick: install ## format, vet, house rules, all packages with one kind of node: a few minutes
	@$(STEP) 'gofmt' .ci/gofmt
	@for module in . $(PUBLISHED); do $(STEP) "go vet in $$module" go -C $$module vet ./... || exit 1; done
	@STEP_QUIET=1 $(STEP) 'conformance of nftables, iptables and userspace' \
		$(TEST) $(QUICK) -run '^TestConformance$$' -skip '$(WORLDSREPORT)' $(CONFORMING)
	@STEP_QUIET=1 $(STEP) 'tests of all other packages' $(TEST) $(QUICK) $$(go list ./... | grep -vE '$(EMULATED)|/backends/(nftables|iptables|userspace)$$')
	@cd $(AGENT) && STEP_QUIET=1 ../../$(STEP) 'tests of $(AGENT)' $(NESTEDTEST) $(QUICK) ./...

# Each run has another seed and another order.
.PHONY: soak
soak: install ## run the tests of "make test" again and again, until one fails (SOAKS=10)
	@rounds=$$(seq 1 $(SOAKS)) && for n in $$rounds; do \
		$(STEP) "soak $$n of $(SOAKS)" $(MAKE) --no-print-directory tests || exit 1; \
	done

# What follows needs other kernels, Windows, Kubernetes or time. CI runs it after "make test".
.PHONY: lanes
lanes: cross windows peer ipvs-conformance ## what "make test" leaves out: other systems, Kubernetes, IPVS

.PHONY: install
install:
	@.ci/install nft=nftables iptables-nft-restore=iptables etcd=etcd-server

.PHONY: check
check:
	@$(STEP) 'gofmt' .ci/gofmt
	@$(STEP) 'go mod verify' go mod verify
	@$(STEP) 'go mod tidy' go mod tidy -diff
	@$(STEP) 'house rules' go test -count=1 ./internal/house
	@for module in $(NESTED); do $(STEP) "go mod tidy in $$module" .ci/tidy $$module || exit 1; done

# golangci-lint runs go vet for this system.
.PHONY: cross
cross: ## go vet for Windows, macOS and arm64
	@for os in windows darwin; do for module in . $(AGENT); do \
		$(STEP) "go vet in $$module for $$os" env GOOS=$$os CGO_ENABLED=0 go -C $$module vet -tags measure,ipvs ./... || exit 1; \
	done; done
	@$(STEP) 'go vet of what uses the kernel, for arm64' env GOARCH=arm64 CGO_ENABLED=0 go vet -tags measure,ipvs ./backends/... ./internal/...
	@for module in $(filter-out $(AGENT),$(NESTED)); do \
		$(STEP) "go vet in $$module for windows" env GOOS=windows CGO_ENABLED=0 go -C $$module vet -tags ipvs ./... || exit 1; \
	done

.PHONY: lines
lines: ## print the lines of code of each area beside its budget
	@go test -count=1 -v -run '^TestLines$$' ./internal/house

.PHONY: apidiff
apidiff: ## compare the API with that of the last release (BASE=revision)
	@.ci/apidiff $(BASE)

# $(call lint,MODULE) is the step for a module of its own. internal/peer has one in its lane: it compiles Kubernetes.
lint = $(STEP) 'golangci-lint in $(1)' sh -c 'cd $(1) && $(LINT) run --config=$(CURDIR)/.golangci.yml'

.PHONY: lint
lint: ## run golangci-lint
	@$(STEP) 'golangci-lint' $(LINT) run
	@$(call lint,allocator/etcdstore)
	@$(call lint,$(AGENT))

.PHONY: examples
examples:
	@for example in quickstart; do \
		[ ! -d examples/$$example ] || $(STEP) "examples/$$example" timeout 120 go run ./examples/$$example || exit 1; \
	done

# The large cases take a minute, and run the same code.
.PHONY: bench-once
bench-once:
	@$(STEP) 'each benchmark once' go test -vet=off -run '^$$' -bench . -skip '^BenchmarkLayouts$$/./^10000x|^BenchmarkClassChange$$/^services=10000' -benchtime 1x $(BENCHMARKS)

.PHONY: race
race:
	@if $(HASCC); then \
		$(STEP) 'tests with the race detector' env CGO_ENABLED=1 \
			$(TEST) -race -skip '$(WORLDSREPORT)' $$(go list ./... | grep -vE '$(NORACE)|$(EMULATED)|/internal/house$$'); \
	else echo '==> no C compiler: tests with the race detector are left out'; fi

.PHONY: nested
nested: agent newest
	@cd allocator/etcdstore && STEP_QUIET=1 ../../$(STEP) 'tests of allocator/etcdstore' $(NESTEDTEST) ./...

.PHONY: agent
agent:
	@cd $(AGENT) && STEP_QUIET=1 ../../$(STEP) 'tests of $(AGENT)' $(NESTEDTEST) ./...

# go.mod names the oldest Kubernetes that is supported, and the agent's go.mod the newest. Within the
# agent's module, the packages of the library are tested with the newest.
.PHONY: newest
newest: ## run the tests of what uses client-go with the newest Kubernetes
	@cd $(AGENT) && STEP_QUIET=1 ../../$(STEP) 'tests with the newest Kubernetes' $(NESTEDTEST) \
		$(addprefix github.com/vipkit/vipkit/,proxy/kubewatch proxy/manifest allocator/kubestore)

# The programs are built first, so that the time limit is for the tests alone.
.PHONY: peer
peer: ## run the tests with Kubernetes and a browser: an API server, kube-proxy
	@.ci/install etcd=etcd-server nft=nftables iptables-nft-restore=iptables chromium=chromium $(WINEPROGRAMS)
	@$(STEP) 'build kube-apiserver and kube-proxy' go -C internal/peer build -o /dev/null \
		k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kube-proxy
	@$(call lint,internal/peer)
	@cd internal/peer && STEP_QUIET=1 ../../$(STEP) 'tests with Kubernetes' \
		$(NESTEDTEST) -p 1 -timeout=20m ./...

# With a version stamp, unlike the other programs.
.PHONY: image
image: ## build the container image of examples/kubeproxy, without other programs (IMAGE=folder)
	@GOFLAGS='$(filter-out -buildvcs=%,$(GOFLAGS)) -buildvcs=auto' go -C internal/peer run ./image -source '$(CURDIR)' -output '$(abspath $(IMAGE))'

.PHONY: bench
bench: install ## run all benchmarks (BENCHTIME=1s)
	go test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) ./...

.PHONY: fuzz
fuzz: install ## run each fuzz target for a while (FUZZTIME=30s)
	@grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed 's/:func / /' | while read -r file name; do \
		$(STEP) "$$name in $$(dirname $$file)" \
			go -C "$$(dirname $$file)" test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) . </dev/null || exit 1; \
	done

# STEPS=file replays the steps of a file. REDUCE=1 looks for fewer steps that fail, too,
# for STORMTIME, and writes them to file.reduced. The backends ipvs and ipvs-legacy, and files
# with ipvs in their names, run on Linux 6.1 in a virtual machine, which writes to the output.
.PHONY: storm
storm: install $(if $(IPVSSTORM),vm-program) ## random faults under load, for each backend or some (STORMTIME=2m BACKEND=nftables)
	$(if $(BACKEND),$(call known,BACKEND,$(ALLSTORMS)))$(call flag,REDUCE)VIPKIT_STORM_BACKEND='$(BACKEND)' VIPKIT_STORM_TIME=$(STORMTIME) VIPKIT_STORM_RATE=$(STORMRATE) VIPKIT_STORM_FOLDER=$(STORMFOLDER) \
	$(if $(IPVSSTORM),GOMAXPROCS=8) VIPKIT_STORM_REPLAY=$(abspath $(STEPS)) VIPKIT_STORM_REDUCE=$(REDUCE) \
		go test -count=1 -timeout=$(STORMLIMIT) -v $(if $(IPVSSTORM),-tags ipvs $(filter-out -timeout=%,$(INVM)) 6.1') -run '^TestStorm$$' ./internal/testing/storm

.PHONY: table
table: install ## write docs/capabilities.md, except the column of ipvs, by running the conformance suite
	VIPKIT_UPDATE=1 $(TEST) -timeout=60m -p 1 -run '^TestConformance' ./backends/...

.PHONY: worlds
worlds: install ## run all of the conformance suite on all kinds of nodes
	VIPKIT_EVERYTHING=1 $(TEST) -v -timeout=60m -p 1 -run '^TestConformance' ./backends/nftables ./backends/iptables ./backends/userspace

# KERNELS names those that internal/testing/vm knows. The subtests of TESTS are below the names of the
# flavours in backends/iptables. WORLDS=1 also tests other kinds of nodes, which takes hours.
.PHONY: kernels
kernels: TESTS ?= ^TestConformance
kernels: vm-program ## run the conformance suite on other kernels (KERNELS='6.1 6.12' BACKENDS=nftables WORLDS=1 TESTS=^TestConformance/^Laws)
	$(call known,KERNELS,$(ALLKERNELS))$(call known,BACKENDS,$(ALLBACKENDS))$(call flag,WORLDS)@status=0; for kernel in $(KERNELS); do for backend in $(BACKENDS); do \
		VIPKIT_IPVS_WORLDS=$(WORLDS) $(STEP) "$$backend on Linux $$kernel" $(TEST) -tags ipvs $(INVM) '$$kernel \
			-run '$(TESTS)|$(subst TestConformance/,TestConformance/^(legacy|nft)$$/,$(TESTS))' \
			$(if $(WORLDS),,-skip '$(WORLDSREPORT)') ./backends/$$backend || status=1; \
	done; done; exit $$status

# The usual kernel of tests has no IPVS, so these tests have the build tag ipvs. WORLDS=1 also
# tests other kinds of nodes, and docs/capabilities.md.
.PHONY: ipvs
ipvs: vm-program ## run the tests of IPVS on Linux 6.1, in a virtual machine (WORLDS=1)
	$(call flag,WORLDS)@VIPKIT_IPVS_WORLDS=$(WORLDS) STEP_QUIET=1 $(STEP) 'IPVS on Linux 6.1' $(TEST) -tags ipvs $(INVM) 6.1' $(IPVS)
	@STEP_QUIET=1 $(STEP) 'ipvs before, after and beside other backends on Linux 6.1' $(TEST) -tags ipvs $(INVM) 6.1' -run '^TestTraffic/ipvs' ./internal/testing/differential
	@STEP_QUIET=1 $(STEP) 'examples with IPVS on Linux 6.1' $(TEST) -tags ipvs $(INVM) 6.1' -run '$(IPVSTESTS)' $(IPVSEXAMPLES)
	@cd $(AGENT) && STEP_QUIET=1 ../../$(STEP) '$(AGENT) with IPVS on Linux 6.1' $(NESTEDTEST) -tags ipvs $(INVM) 6.1' -run '$(IPVSTESTS)' ./agent
	@STEP_QUIET=1 $(STEP) 'a storm of IPVS on Linux 6.1' $(MAKE) --no-print-directory storm BACKEND=ipvs STORMTIME=1m STORMLIMIT=15m
	@GOMAXPROCS=8 STEP_QUIET=1 $(STEP) 'kept storms of IPVS on Linux 6.1' $(TEST) -tags ipvs $(INVM) 6.1' -run '^TestKept$$/^ipvs' ./internal/testing/storm
	@cd internal/peer && STEP_QUIET=1 ../../$(STEP) "beside kube-proxy's mode ipvs on Linux 6.1" $(NESTEDTEST) -tags ipvs $(INVM) 6.1' ./ipvsmode
	@cd internal/peer && VIPKIT_SERVICES=50 ../../$(STEP) "speed beside kube-proxy's mode ipvs on Linux 6.1" $(NESTEDTEST) -tags ipvs $(INVM) 6.1' -run '^TestIPVS$$' ./sidebyside

.PHONY: ipvs-conformance
ipvs-conformance: vm-program ## virtual machines, and the part of "make ipvs" that CI runs
	@STEP_QUIET=1 $(STEP) 'virtual machines' $(TEST) ./internal/testing/vm
	@STEP_QUIET=1 $(STEP) 'IPVS on Linux 6.1' $(TEST) -tags ipvs $(INVM) 6.1' ./internal/kernel/ipvs
	@STEP_QUIET=1 $(STEP) 'backend ipvs on Linux 6.1' $(TEST) -tags ipvs $(INVM) 6.1' -run '^TestConformance' ./backends/ipvs

.PHONY: vm
vm: vm-program ## run tests on another kernel (PACKAGES=./backends/ipvs TESTS=TestConformance/^Laws KERNELS=6.1)
	$(call known,KERNELS,$(ALLKERNELS))go test -count=1 -v -tags ipvs $(INVM) $(firstword $(KERNELS))' -run '$(TESTS)' $(or $(PACKAGES),$(IPVS))

.PHONY: mutants
mutants: install vm-program ## run the tests on small faults that they must catch (MUTANTS=regexp)
	go run ./internal/house/mutants -run '$(MUTANTS)'

.PHONY: windows
windows: ## run the tests of what Windows can run as its programs, under Wine
	@.ci/install $(WINEPROGRAMS)
	@go build -o '$(SKIPCHECK)' ./internal/house/skipcheck
	@if [ -x /usr/lib/wine/wine64 ]; then \
		STEP_QUIET=1 $(STEP) 'tests on Windows, under Wine' env GOOS=windows CGO_ENABLED=0 .ci/wine/run sh -c \
			'"$$0" -exec "$$WINE" -count=1 -shuffle=on -timeout=5m "$$@"' '$(SKIPCHECK)' -skip '$(WINDOWSTESTS)' $(WINDOWS) && \
		cd $(AGENT) && STEP_QUIET=1 ../../$(STEP) 'tests of $(AGENT) on Windows, under Wine' env GOOS=windows CGO_ENABLED=0 ../../.ci/wine/run sh -c \
			'"$$0" -exec "$$WINE" -count=1 -shuffle=on -timeout=5m "$$@"' '$(SKIPCHECK)' -skip '$(WINDOWSTESTS)' ./agent; \
	else echo '==> no Wine: tests on Windows are left out'; fi

# govulncheck says so itself if it cannot reach its data.
.PHONY: vulnerabilities
vulnerabilities: ## look for known vulnerabilities in what the modules use; needs vuln.go.dev
	@status=0; for module in . $(NESTED); do $(STEP) "vulnerabilities of $$module" go -C $$module run $(VULN) ./... || status=1; done; exit $$status

.PHONY: sbom
sbom: ## write the modules that importers get, in the format CycloneDX, and list their licences (SBOM=sbom.json)
	@$(STEP) 'modules and licences' go run $(CYCLONEDX) mod -licenses -json -output '$(SBOM)'
	@awk -F '"' '/^  "components"/ { list = 1 } !list { next } /^      "name"/ { if (name) print licence, name, version; name = $$4; licence = "unknown" } /^      "version"/ { version = $$4 } \
		/^ *"id"/ { licence = $$4 } /^  "dependencies"/ { print licence, name, version; exit }' '$(SBOM)' | sort

.PHONY: vm-program
vm-program:
	@.ci/install nft=nftables iptables-nft-restore=iptables $(VMPROGRAMS)
	@go build -o '$(VM)' ./internal/testing/vm

.PHONY: fmt
fmt: ## format all code
	$(LINT) fmt

.PHONY: clean
clean: ## remove files that builds and tests left
	go clean ./...
	go clean -testcache
	rm -f *.test *.prof *.out '$(VM)' '$(SKIPCHECK)'
