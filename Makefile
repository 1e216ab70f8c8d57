# On a fresh Debian machine `make demo` and `make test` need Go and root, and nothing else: they set
# up the rest themselves.

GO ?= go

# Of `go test ./...`, with the brokers and databases that it starts.
TEST_TIMEOUT ?= 40m

# Packages, and tests of one package, that run at once: most of them wait for a broker.
TEST_PACKAGES ?= 2
TEST_PARALLEL ?= 4

# `make test RACE=` tests without the race detector, which needs a C compiler.
RACE ?= -race

# Packages that share no memory among goroutines, or whose users' tests do it for them (console that
# of auth): the race detector would only make them ten times slower.
UNRACED := amqpx/console/internal/auth amqpx/schedule/internal/timetable dlx

# Tests that -race leaves out, by their build tag.
SIMULATIONS = $(shell grep -l '^//go:build !race' amqpx/schedule/*_test.go | xargs grep -oh '^func Test[A-Za-z0-9]*' | cut -c 6- | paste -sd '|')

# The tests beside sqlx, gorm, bun and ent are a module of their own, which follows the dependencies of
# this one by itself. gorm's driver for SQLite is C, which takes minutes to compile, and nothing calls it.
ORM := cd integration/orm && CGO_ENABLED=0 GOFLAGS=-mod=mod

# Where the conformance suite writes its table, which go test keeps to itself when all is well.
TABLE := $(CURDIR)/.cache/conformance.txt

# Arguments of demo and bench, such as ARGS="--orders 100 --strategy ttl".
ARGS ?=

FUZZ_TIME ?= 10s

LINT_VERSION := v2.15.0
VULNCHECK_VERSION := v1.1.4
CACHE := .cache
LINT := $(CACHE)/golangci-lint-$(LINT_VERSION)

.DEFAULT_GOAL := help

.PHONY: help
help: ## say what the targets do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s%s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: ## run the main job on a real broker: orders that expire unless they are paid (ARGS=...)
	@integration/setup.sh broker
	@$(GO) run ./cmd/rabbitdelay-lab demo $(ARGS)

.PHONY: test
test: setup ## test everything on real brokers and databases, with the race detector
	@mkdir -p $(CACHE)
	RABBITDELAY_CONFORMANCE_TABLE=$(TABLE) $(GO) test $(RACE) -p $(TEST_PACKAGES) -parallel $(TEST_PARALLEL) -timeout $(TEST_TIMEOUT) \
		$$($(GO) list ./integration/... && $(GO) list ./... | grep -v -e /integration/ $(patsubst %,-e '/%$$',$(UNRACED)))
	$(GO) test -timeout $(TEST_TIMEOUT) $(patsubst %,./%,$(UNRACED))
	$(GO) test -timeout $(TEST_TIMEOUT) -run '^($(SIMULATIONS))$$' ./amqpx/schedule
	$(ORM) $(GO) test -timeout $(TEST_TIMEOUT) ./...
	@[ ! -f $(TABLE) ] || [ "$$RABBITDELAY_SKIP_INTEGRATION" = 1 ] || cat $(TABLE)

.PHONY: conformance
conformance: setup ## run every strategy on every queue type and RabbitMQ version at hand, and show the table
	@mkdir -p $(CACHE)
	@rm -f $(TABLE)
	@RABBITDELAY_CONFORMANCE_TABLE=$(TABLE) $(GO) test $(RACE) -timeout $(TEST_TIMEOUT) -count=1 -run '^TestConformance$$' ./integration/conformance; \
	status=$$?; [ ! -f $(TABLE) ] || cat $(TABLE); exit $$status

.PHONY: test-short
test-short: ## test what needs neither a broker nor a database
	RABBITDELAY_SKIP_INTEGRATION=1 $(GO) test -short -timeout $(TEST_TIMEOUT) ./...
	$(ORM) RABBITDELAY_SKIP_INTEGRATION=1 $(GO) test -short -timeout $(TEST_TIMEOUT) ./...

.PHONY: setup
setup: ## install what the tests need: servers, a C compiler, images where Docker answers
	@integration/setup.sh tests

.PHONY: images
images: ## build Docker images of RabbitMQ 3.10, 4.0 and 4.3 and of MySQL from Debian's packages
	@integration/images/build.sh

.PHONY: bench
bench: ## measure beside the raw client, polling and the plugin, half an hour or more (ARGS="latency --quick")
	@integration/setup.sh tests
	@$(GO) run ./cmd/rabbitdelay-lab bench --report $(CACHE)/bench $(ARGS)

# Once each, so that they cannot rot; for figures: -count=10 -benchtime=1s, and benchstat.
.PHONY: microbench
microbench: ## run every Go benchmark once
	$(GO) test -run '^$$' -bench . -benchtime 1x -benchmem ./amqpx ./amqpx/telemetry ./dlx ./plugin

.PHONY: build
build: ## build the commands into bin/
	$(GO) build -trimpath -o bin/ ./cmd/rabbitdelay ./cmd/rabbitdelay-lab

# Of the container image.
IMAGE ?= rabbitdelay:latest

.PHONY: image
image: ## build a container image of the command (IMAGE=rabbitdelay:latest)
	@mkdir -p $(CACHE)/image
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $(CACHE)/image/rabbitdelay ./cmd/rabbitdelay
	cp /etc/ssl/certs/ca-certificates.crt $(CACHE)/image/
	docker build --quiet --tag $(IMAGE) --file cmd/rabbitdelay/Dockerfile $(CACHE)/image

.PHONY: fmt
fmt: ## format the Go files
	@gofmt -l -w $$(find . -name '*.go' -not -path './$(CACHE)/*')

.PHONY: lint
lint: $(LINT) ## check the Go files
	@"$$(cat $(LINT))" run ./...
	@lint="$$(cat $(LINT))"; $(ORM) "$$lint" run ./...

# It asks the database of Go's vulnerabilities, so it is no part of lint, which works offline.
.PHONY: vulncheck
vulncheck: ## look for known vulnerabilities in what is called, where https://vuln.go.dev can be reached
	@mkdir -p $(CACHE)
	@status=0; \
	$(GO) run golang.org/x/vuln/cmd/govulncheck@$(VULNCHECK_VERSION) ./... >$(CACHE)/vulncheck 2>&1 || status=$$?; \
	cat $(CACHE)/vulncheck; \
	if [ $$status -ne 0 ] && grep -q 'fetching vulnerabilities' $(CACHE)/vulncheck; then \
		echo "vulncheck: nothing was checked: the vulnerability database, https://vuln.go.dev, cannot be reached from here" >&2; \
	fi; \
	exit $$status

# The file holds the path of a golangci-lint of the pinned version: one that is there, or else one
# that is built here. It builds from source, so that it knows the Go version of this module.
$(LINT): Makefile
	@mkdir -p $(CACHE)/bin
	@for lint in "$$(command -v golangci-lint)" "$$($(GO) env GOPATH)/bin/golangci-lint" "$(CURDIR)/$(CACHE)/bin/golangci-lint"; do \
		if [ -x "$$lint" ] && [ "v$$("$$lint" version --short 2>/dev/null | sed 's/^v//')" = "$(LINT_VERSION)" ]; then \
			echo "$$lint" >$@; \
			exit 0; \
		fi; \
	done; \
	echo "building golangci-lint $(LINT_VERSION)" >&2; \
	GOBIN="$(CURDIR)/$(CACHE)/bin" $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION) && \
	echo "$(CURDIR)/$(CACHE)/bin/golangci-lint" >$@

# Of `make faults`: how long each run breaks things, and the seed of the sequence in which it does.
# ARGS takes more, such as ARGS="-on cluster -rate 200 -out ledger.json"; the flags are in
# integration/faults/faults_test.go.
DURATION ?= 10m
SEED ?= 1

.PHONY: faults
faults: setup ## break brokers, networks, consumers and databases for long, and print the ledger (DURATION=1h SEED=7)
	$(GO) test -count=1 -v -timeout 0 -run '^(TestFaults|TestLayoutsChange)$$' ./integration/faults -args -duration $(DURATION) -seed $(SEED) $(ARGS)

.PHONY: fuzz
fuzz: ## run every fuzz test for a while (FUZZ_TIME=10s)
	@for package in $$($(GO) list ./...); do \
		for test in $$($(GO) test -list '^Fuzz' "$$package" | grep '^Fuzz'); do \
			echo "$$package $$test"; \
			$(GO) test -run '^$$' -fuzz "^$$test\$$" -fuzztime $(FUZZ_TIME) "$$package" || exit 1; \
		done; \
	done
