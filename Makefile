# On a fresh Debian machine, `make demo` and `make test` need only Go and root. They install everything else.

GO ?= go

# Time limit for one package's tests, including the brokers and databases that they start.
TEST_TIMEOUT ?= 40m

# The number of tests in one package that run concurrently. Most of them wait for a broker and not for a processor.
TEST_PARALLEL ?= 3

# `make test RACE=` tests without the race detector, which needs a C compiler. By default, the race detector sleeps for
# a second at the end of each package.
RACE ?= -race
export GORACE ?= atexit_sleep_ms=100

# The race detector makes tests up to eight times slower. So make test uses it only for packages whose own goroutines
# share memory, and make test-all uses it for all packages. The inner packages of SQLite and bcrypt are not
# instrumented. This is possible because they have no generic code, which would also be linked into other packages.
WATCH = $(if $(RACE),$(RACE) -gcflags='modernc.org/sqlite/lib=-race=false' -gcflags='golang.org/x/crypto/blowfish=-race=false')
SHARED := (/console/service|/rabbitdelay/internal/(codec|sqldb)|/amqpx(/amqptest|/idempotency|/internal/(declare|flow|header|duecheck|table|wire)|/pgxtx|/schedule|/schedule/internal/(polling|relay|sweep)|/service|/telemetry)?)$$$$

# make lint includes vet. CI does not use cached results.
GO_TEST = $(GO) test -vet=off $(if $(CI),-count=1) -timeout $(TEST_TIMEOUT) -parallel $(TEST_PARALLEL) -p

# Everything that runs without the race detector is compiled without C and without paths. Lint, tests and releases thus
# share compiled packages, which saves minutes. gorm's driver for SQLite also needs C, but no code calls it.
PLAIN := CGO_ENABLED=0 GOFLAGS=-trimpath

# The packages of the product and their tests. Those in LONG_PACKAGES take the longest, so each is a separate part.
LONG_PACKAGES := /amqpx(/schedule)?$$$$
SHARED_PACKAGES = $$($(GO) list ./... | grep -E '$(SHARED)' | grep -Ev '$(LONG_PACKAGES)')
OTHER_PACKAGES = $$($(GO) list ./... | grep -Ev '$(SHARED)|/integration/|/operations(/|$$)')

# Packages among these with tests that take too long with the race detector (!race), and the names of these tests.
UNRACED_PACKAGES := ./amqpx/amqptest ./amqpx/schedule
UNRACED_TESTS = $(shell grep -l '^//go:build !race' $(UNRACED_PACKAGES:%=%/*_test.go) | xargs sed -n 's/^func \(\(Test\|Example\)[A-Za-z0-9_]*\).*/\1/p' | paste -sd '|')

# The program's tests on real brokers, which are in a separate package.
PROGRAM_SUITE := ./cmd/rabbitdelay/internal/operations

# The packages below integration. A package that both make test and make test-servers run has a tier.Plan, which assigns
# its tests to the two. Packages in neither list belong to make test-servers.
QUICK_SUITES := bench demo loopback pictures proxy servers source tier
NAMED_SUITES := compare conformance faults messages orm simulate tasks
SERVER_SUITES = $(filter-out $(QUICK_SUITES) $(NAMED_SUITES),$(sort $(patsubst integration/%/,%,$(dir $(wildcard integration/*/*_test.go)))))

# The number of simulation seeds in make test. make test-servers uses the next 200 seeds.
TEST_SEEDS := 40

# The tests with sqlx, gorm, bun and ent, and the comparison with River and asynq, are separate modules. With -mod=mod
# they follow changes of this module's dependencies.
MODULE := $(PLAIN) GOFLAGS='-trimpath -mod=mod'
ORM := cd integration/orm && $(MODULE)
COMPARE := cd integration/compare && $(MODULE)

# The file to which the conformance suite writes its table, because go test does not print it if all tests pass.
TABLE := $(CURDIR)/.cache/conformance.txt

# Arguments for demo and bench, such as ARGS="--orders 100 --strategy ttl".
ARGS ?=

FUZZ_TIME ?= 10s

LINT_VERSION := v2.15.0
VULNCHECK_VERSION := v1.1.4
CACHE := .cache
LINT := $(CACHE)/golangci-lint-$(LINT_VERSION)

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-17s%s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: ## run an example on a real broker: orders that expire unless they are paid (ARGS=...)
	@integration/setup.sh broker
	@$(GO) run ./integration/lab demo $(ARGS)

.PHONY: test
test: setup-test ## before a push: all packages' own tests, and the main cases on RabbitMQ, PostgreSQL and SQLite
	@RABBITDELAY_TEST_TIER=test $(MAKE) --no-print-directory --keep-going --jobs=2 $(TEST_PARTS:%=part-%)

# The parts of make test in the order in which they start, two at a time. Long parts are first, to use both jobs evenly.
TEST_PARTS := schedule packages amqpx suites shared messages unraced simulate
.PHONY: $(TEST_PARTS:%=part-%)
part-schedule:
	$(GO_TEST) 1 $(WATCH) ./amqpx/schedule
part-amqpx:
	$(GO_TEST) 1 $(WATCH) ./amqpx
part-shared:
	$(GO_TEST) 1 $(WATCH) $(SHARED_PACKAGES)
part-packages:
	$(PLAIN) $(GO_TEST) 1 $(OTHER_PACKAGES) $(QUICK_SUITES:%=./integration/%)
part-suites:
	$(PLAIN) $(GO_TEST) 1 ./integration/tasks ./integration/lab ./integration/tutorials $(PROGRAM_SUITE) ./integration/conformance
part-messages:
	$(GO_TEST) 1 $(WATCH) ./integration/messages
part-unraced:
	$(PLAIN) $(GO_TEST) 1 -run '^($(UNRACED_TESTS))$$' $(UNRACED_PACKAGES)
part-simulate:
	$(PLAIN) $(GO_TEST) 1 ./integration/simulate -args -from 1 -seeds $(TEST_SEEDS)

.PHONY: test-servers
test-servers: setup ## before a merge: other versions, databases, languages and browsers, short fault runs
	@mkdir -p $(CACHE)
	@status=0; RABBITDELAY_TEST_TIER=servers $(MAKE) --no-print-directory --keep-going --jobs=2 $(SERVER_PARTS:%=servers-%) || status=$$?; \
	[ ! -f $(TABLE) ] || [ "$$RABBITDELAY_SKIP_INTEGRATION" = 1 ] || cat $(TABLE); exit $$status

# The parts of make test-servers in the order in which they start, two at a time. Long parts are first, to use both jobs
# evenly. Tests of messages and tasks mostly wait for leases and pauses, so more of them run concurrently. Conformance
# loads the brokers most, and is last, because overloaded brokers refuse operations.
SERVER_PARTS := tasks messages operations faults browser plugin broker tutorials others orm compare simulate conformance
.PHONY: $(SERVER_PARTS:%=servers-%)
servers-tasks servers-messages:
	$(PLAIN) $(GO_TEST) 1 -parallel $$((2 * $(TEST_PARALLEL))) ./integration/$(@:servers-%=%)
servers-faults servers-browser servers-broker servers-tutorials:
	$(PLAIN) $(GO_TEST) 1 ./integration/$(@:servers-%=%)
servers-operations:
	$(PLAIN) $(GO_TEST) 1 $(PROGRAM_SUITE)
servers-plugin:
	$(PLAIN) $(GO_TEST) 1 $(PROGRAM_SUITE)/plugin
servers-others:
	$(PLAIN) $(GO_TEST) 1 $(patsubst %,./integration/%,$(filter-out $(SERVER_PARTS),$(SERVER_SUITES)))
servers-orm:
	$(ORM) $(GO_TEST) 1 ./...
servers-compare:
	$(COMPARE) $(GO_TEST) 1 ./...
servers-simulate:
	RABBITDELAY_TEST_TIER= $(PLAIN) $(GO_TEST) 1 ./integration/simulate -args -from $$(($(TEST_SEEDS) + 1)) -seeds 200
servers-conformance:
	RABBITDELAY_CONFORMANCE_TABLE=$(TABLE) $(PLAIN) $(GO_TEST) 1 ./integration/conformance

# Versions on which make test-all repeats tests that otherwise run only on the newest version.
OLDER_VERSIONS := 3.10 4.0

# The duration of each test in make test-all that can run for any length of time.
NIGHT ?= 30m

.PHONY: test-all
test-all: setup ## every night and before a release: all tests on all servers, long fault runs, defects, fuzzing (NIGHT=30m)
	@mkdir -p $(CACHE)
	RABBITDELAY_TEST_TIER=all RABBITDELAY_CONFORMANCE_TABLE=$(TABLE) $(GO_TEST) 1 $(WATCH) ./...
	@for version in $(OLDER_VERSIONS); do \
		echo "tests on RabbitMQ $$version only"; \
		RABBITDELAY_TEST_VERSION=$$version $(GO_TEST) 1 $(WATCH) $(PROGRAM_SUITE)/... $(patsubst %,./integration/%,messages tasks browser) || exit 1; \
	done
	$(PLAIN) $(GO_TEST) 1 $(OTHER_PACKAGES)
	$(PLAIN) $(GO_TEST) 1 -run '^($(UNRACED_TESTS))$$' $(UNRACED_PACKAGES)
	$(ORM) $(GO_TEST) 1 ./...
	$(COMPARE) $(GO_TEST) 1 ./...
	$(MAKE) --no-print-directory microbench
	$(MAKE) --no-print-directory simulate SEEDS=5000
	$(MAKE) --no-print-directory simulate-defects SEEDS=1000
	$(MAKE) --no-print-directory faults DURATION=$(NIGHT)
	$(MAKE) --no-print-directory soak SOAK=$(NIGHT)
	$(MAKE) --no-print-directory fuzz FUZZ_TIME=60s
	@cat $(TABLE)

.PHONY: conformance
conformance: setup ## test every strategy on every queue type and available RabbitMQ version, and print the table
	@mkdir -p $(CACHE)
	@rm -f $(TABLE)
	@RABBITDELAY_CONFORMANCE_TABLE=$(TABLE) $(PLAIN) $(GO) test -timeout $(TEST_TIMEOUT) -count=1 -run '^TestConformance$$' ./integration/conformance; \
	status=$$?; [ ! -f $(TABLE) ] || cat $(TABLE); exit $$status

.PHONY: test-short
test-short: ## run the tests that need neither a broker nor a database
	RABBITDELAY_SKIP_INTEGRATION=1 $(PLAIN) $(GO) test -short -timeout $(TEST_TIMEOUT) ./...
	$(ORM) RABBITDELAY_SKIP_INTEGRATION=1 $(GO) test -short -timeout $(TEST_TIMEOUT) ./...
	$(COMPARE) RABBITDELAY_SKIP_INTEGRATION=1 $(GO) test -short -timeout $(TEST_TIMEOUT) ./...

.PHONY: setup-test
setup-test: ## install the requirements of make test: a C compiler, RabbitMQ and PostgreSQL
	@integration/setup.sh test

.PHONY: setup
setup: ## install the requirements of all tests: servers, languages, a browser, and images if Docker is running
	@integration/setup.sh servers

.PHONY: images
images: ## build Docker images of RabbitMQ 3.10, 4.0 and 4.3 and of MySQL from Debian's packages
	@integration/images/build.sh

.PHONY: bench
bench: ## compare with the raw client, polling and the plugin, half an hour or more (ARGS="latency --quick")
	@integration/setup.sh servers
	@$(GO) run ./integration/lab bench --report $(CACHE)/bench $(ARGS)

.PHONY: compare
compare: ## compare with River, asynq, Redis and a polled table, 30 minutes (ARGS="steady --quick")
	@integration/setup.sh servers
	@$(COMPARE) $(GO) run . --report $(CURDIR)/$(CACHE)/compare $(ARGS)

# This only checks that the benchmarks work. To measure, run one with -count=10 -benchtime=1s, and use benchstat.
.PHONY: microbench
microbench: ## run every Go benchmark once
	$(PLAIN) $(GO) test -vet=off -run '^$$' -bench . -benchtime 1x -benchmem $(sort $(dir $(shell grep -rl --include='*_test.go' --exclude-dir=$(CACHE) '^func Benchmark' .)))

.PHONY: build
build: ## build the program in bin/
	$(GO) build -trimpath -o bin/ ./cmd/rabbitdelay

.PHONY: pictures
pictures: ## write the documents' diagrams and plots to docs/images
	@$(PLAIN) $(GO) test -vet=off -count=1 ./integration/pictures -args -update

.PHONY: site
site: ## build the documents as web pages with a search in bin/site, and check their links
	@integration/setup.sh site
	@docs/site/build.sh $(CURDIR)/bin/site

.PHONY: man
man: ## write the commands' man pages to bin/man
	@mkdir -p bin/man
	@$(PLAIN) $(GO) test -vet=off -count=1 -run '^TestManPages$$' ./cmd/rabbitdelay/internal/cli -args -man $(CURDIR)/bin/man

# The version that `make release` builds.
VERSION ?= 0.0.0

.PHONY: release
release: ## build all files of a release in dist/, without publishing them (VERSION=0.1.0)
	@.ci/release/build.sh $(VERSION)

# The name of the image that `make image` builds.
IMAGE ?= rabbitdelay:latest

.PHONY: image
image: ## build a container image of the program (IMAGE=rabbitdelay:latest)
	@mkdir -p $(CACHE)/image
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $(CACHE)/image/rabbitdelay ./cmd/rabbitdelay
	cp /etc/ssl/certs/ca-certificates.crt $(CACHE)/image/
	docker build --quiet --tag $(IMAGE) --file cmd/rabbitdelay/Dockerfile $(CACHE)/image

.PHONY: fmt
fmt: ## format the Go files
	@gofmt -l -w $$(find . -name '*.go' -not -path './$(CACHE)/*')

.PHONY: lint
lint: $(LINT) ## check the Go files
	@$(PLAIN) "$$(cat $(LINT))" run ./...
	@lint="$$(cat $(LINT))"; $(ORM) "$$lint" run ./...
	@lint="$$(cat $(LINT))"; $(COMPARE) "$$lint" run ./...

# This is not part of lint, which works offline, because it downloads from Go's vulnerability database.
.PHONY: vulncheck
vulncheck: ## look for known vulnerabilities in called functions; requires access to https://vuln.go.dev
	@mkdir -p $(CACHE)
	@status=0; \
	$(GO) run golang.org/x/vuln/cmd/govulncheck@$(VULNCHECK_VERSION) ./... >$(CACHE)/vulncheck 2>&1 || status=$$?; \
	cat $(CACHE)/vulncheck; \
	if [ $$status -ne 0 ] && grep -q 'fetching vulnerabilities' $(CACHE)/vulncheck; then \
		echo "vulncheck: nothing was checked, because the vulnerability database at https://vuln.go.dev cannot be reached" >&2; \
	fi; \
	exit $$status

# The file contains the path of a golangci-lint of the pinned version. This is an installed one, or otherwise one that
# is built from source here, so that it supports this module's Go version.
$(LINT): Makefile
	@mkdir -p $(CACHE)/bin
	@for lint in "$$(command -v golangci-lint)" "$$($(GO) env GOPATH)/bin/golangci-lint" "$(CURDIR)/$(CACHE)/bin/golangci-lint"; do \
		if [ -x "$$lint" ] && [ "v$$("$$lint" version --short 2>/dev/null | sed 's/^v//')" = "$(LINT_VERSION)" ]; then \
			echo "$$lint" >$@; \
			exit 0; \
		fi; \
	done; \
	echo "building golangci-lint $(LINT_VERSION)" >&2; \
	$(PLAIN) GOBIN="$(CURDIR)/$(CACHE)/bin" $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION) && \
	echo "$(CURDIR)/$(CACHE)/bin/golangci-lint" >$@

# For `make faults`: the duration of each run, and the seed for its sequence of faults. ARGS contains further flags of
# integration/faults/faults_test.go, such as ARGS="-on cluster -rate 200 -out ledger.json".
DURATION ?= 10m
SEED ?= 1

.PHONY: faults
faults: setup ## inject faults of brokers, networks, consumers and databases, and print the ledger (DURATION=1h SEED=7)
	$(GO) test -count=1 -v -timeout 0 -parallel 1 -run '^(TestFaults|TestLayoutsChange)$$' ./integration/faults -args -duration $(DURATION) -seed $(SEED) $(ARGS)

# For `make soak`: the duration, and the file for the plot of memory and other values that must not grow.
SOAK ?= 2h
CURVES ?= $(CURDIR)/$(CACHE)/soak.svg

.PHONY: soak
soak: setup ## send at a steady rate without faults, and check that memory and other values do not grow (SOAK=2h)
	$(PLAIN) $(GO) test -count=1 -v -timeout 0 -run '^TestSoak$$' ./integration/faults -args -soak $(SOAK) -curves $(CURVES) $(ARGS)

# For `make simulate`: the first seed and the number of seeds. With one seed, the trace is printed.
FROM ?= 1
SEEDS ?= 1000

# For `make simulate-defects`: a regular expression that selects planted defects by name.
DEFECT ?= .

.PHONY: simulate
simulate: ## run the whole system with faults in virtual time, once for each seed (FROM=1 SEEDS=100000)
	$(PLAIN) $(GO) test -count=1 -v -timeout 0 -run '^TestSeeds$$' ./integration/simulate -args -from $(FROM) -seeds $(SEEDS)

.PHONY: simulate-defects
simulate-defects: ## plant defects in copies of the source, and count the seeds until each is found (SEEDS=1000)
	$(PLAIN) $(GO) test -count=1 -v -timeout 0 -run '^TestDefects$$' ./integration/simulate -args -plant '$(DEFECT)' -from $(FROM) -seeds $(SEEDS)

.PHONY: fuzz
fuzz: ## run every fuzz test for a short time (FUZZ_TIME=10s)
	@grep -rl '^func Fuzz' --include='*_test.go' --exclude-dir=$(CACHE) . | sort | while read -r file; do \
		for test in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$$file"); do \
			echo "$${file%/*} $$test"; \
			$(PLAIN) $(GO) test -vet=off -run '^$$' -fuzz "^$$test\$$" -fuzztime $(FUZZ_TIME) "$${file%/*}" || exit 1; \
		done; \
	done
