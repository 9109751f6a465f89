# GNU make 3.81 is enough. `make` alone lists the targets.
SHELL := /bin/sh
.DEFAULT_GOAL := help

GOLANGCI_LINT_VERSION := v2.15.0
GORELEASER_VERSION := v2.15.1
NFPM_VERSION := v2.45.2
FUZZTIME := 10s

# Tools are built once per version, outside the repository.
tools := $(shell dirname "$$(go env GOCACHE 2>/dev/null)")/dropctl-tools
golangci_lint := $(tools)/golangci-lint-$(GOLANGCI_LINT_VERSION)/golangci-lint
goreleaser := $(tools)/goreleaser-$(GORELEASER_VERSION)/goreleaser
nfpm := $(tools)/nfpm-$(NFPM_VERSION)/nfpm

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## install what is missing: Redis >= 7.0, PostgreSQL >= 15, a C compiler, kcat
	@sh .ci/deps

.PHONY: demo
demo: deps ## rehearse a whole drop on private servers: 10,000 users, then the verdict
	@echo "compiling (a minute or two the first time)" >&2
	@go run ./cmd/dropctl demo

# The compiler keeps its own folder: it needs none in memory.
scratch := GOTMPDIR="$${TMPDIR:-/tmp}" TMPDIR="$$(sh .ci/scratch)"

.PHONY: test
test: deps ## run all tests with the race detector (about 10 minutes on two cores)
	$(scratch) go test -race -timeout 20m ./...

# A third of this is linking: no symbols for debuggers, and less collecting of garbage.
.PHONY: test-fast
test-fast: deps ## run the quick tests: fewer rounds, no race detector (about a minute on two cores)
	$(scratch) GOGC=400 go test -short -ldflags='-s -w' -p 6 -timeout 5m ./...

SURVIVE_RUNS := 100
RECOVERY_ROUNDS := 5

.PHONY: survive
survive: deps ## cut SURVIVE_RUNS (100) sell-outs at each level of durability, print what was lost; time RECOVERY_ROUNDS (5) of each fault
	@cd pkg/stock && go test -count=1 -timeout 60m -run '^TestAcknowledgedHoldsSurviveAPowerFailure$$' -survive-runs $(SURVIVE_RUNS)
	@cd pkg/worker && go test -count=1 -timeout 60m -run '^TestASaleRecoversByItself$$' -recovery-rounds $(RECOVERY_ROUNDS)

.PHONY: fuzz
fuzz: ## run every fuzzer for FUZZTIME (10s)
	@set -e; grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' cmd pkg | \
	while IFS=: read -r file fuzzer; do \
		fuzzer=$${fuzzer#func }; echo "$$fuzzer ($${file%/*})"; \
		go test -run '^$$' -fuzz "^$$fuzzer\$$" -fuzztime $(FUZZTIME) "./$${file%/*}"; \
	done

# All is measured before a missed bar ends it: what comes after the first one is as much worth knowing.
.PHONY: bench
bench: deps build ## measure the speed bars, all of them; fails when one is missed (needs a quiet machine)
	@trap 'exit 130' INT; status=0; \
	bin/dropctl bench bars || status=$$?; \
	go test -count=1 -run '^$$' -bench '^BenchmarkThrough' -benchtime 1x ./pkg/bench/bars ./pkg/worker/cloudtasks || status=$$?; \
	exit $$status

SOAK := 10m
TORTURE_MINUTES := 10
TORTURE_SEEDS := 1 2 3

.PHONY: soak
soak: deps build ## keep a server under load for SOAK (10m), then torture for TORTURE_MINUTES (10) with each of TORTURE_SEEDS (1 2 3)
	@bin/dropctl bench bars --only soak --soak $(SOAK)
	@set -e; for seed in $(TORTURE_SEEDS); do bin/dropctl simulate --torture --minutes $(TORTURE_MINUTES) --seed $$seed; done

.PHONY: lint
lint: $(golangci_lint) ## check format, vet for three systems, linters, go.mod
	@unformatted=$$(gofmt -l cmd pkg lua migrations completions); \
	if [ -n "$$unformatted" ]; then echo "run gofmt -w on:" $$unformatted >&2; exit 1; fi
	go vet ./...
	GOOS=darwin go vet ./...
	GOOS=windows go vet ./...
	$(golangci_lint) run ./...
	go mod tidy -diff

.PHONY: build
build: ## build a static ./bin/dropctl
	CGO_ENABLED=0 go build -trimpath -o bin/dropctl ./cmd/dropctl

.PHONY: completions
completions: ## write the shell completions anew
	go run ./cmd/dropctl completion bash > completions/dropctl.bash
	go run ./cmd/dropctl completion zsh > completions/_dropctl
	go run ./cmd/dropctl completion fish > completions/dropctl.fish

.PHONY: package
package: $(nfpm) build ## build a deb and an rpm into dist, install and look into them (needs dpkg)
	@mkdir -p dist
	go test -count=1 -run '^TestThe(Deb|RPM)' ./pkg/packaging -args -nfpm $(nfpm) -program $(CURDIR)/bin/dropctl -out $(CURDIR)/dist
	@ls -l dist/*.deb dist/*.rpm

# In a clone: the tool wants a remote, and what is not committed is not released.
.PHONY: release-check
release-check: $(goreleaser) ## check the release file, build all archives of HEAD and look into them
	@set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; trap 'exit 130' INT TERM; \
	git clone --quiet . "$$folder/dropctl"; cd "$$folder/dropctl"; \
	git remote set-url origin https://github.com/dropctl/dropctl; \
	$(goreleaser) check; \
	$(goreleaser) release --snapshot --clean --skip=publish; \
	for system in linux darwin; do for cpu in amd64 arm64; do \
		list=$$(tar -tzf dist/dropctl_*_$${system}_$$cpu.tar.gz); \
		for file in dropctl README.md LICENSE completions/dropctl.bash completions/_dropctl completions/dropctl.fish; do \
			echo "$$list" | grep -qx "$$file" || { echo "$$file is missing in the archive for $$system $$cpu" >&2; exit 1; }; \
		done; \
	done; done; \
	for package in deb rpm; do for cpu in amd64 arm64; do \
		ls dist/dropctl_*_linux_$$cpu.$$package >/dev/null; \
	done; done; \
	ls -l dist/*.tar.gz dist/*.zip dist/*.deb dist/*.rpm dist/*_checksums.txt

.PHONY: clean
clean: ## remove what the other targets built
	rm -rf bin dist

$(golangci_lint):
	GOBIN=$(@D) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)

$(nfpm):
	GOBIN=$(@D) go install github.com/goreleaser/nfpm/v2/cmd/nfpm@$(NFPM_VERSION)

$(goreleaser):
	GOBIN=$(@D) go install github.com/goreleaser/goreleaser/v2@$(GORELEASER_VERSION)
