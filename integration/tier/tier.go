// Package tier decides which tests of a package run. Every test, or every cell of a test that repeats on several
// servers, belongs to exactly one tier:
//
//   - test (make test) is what a contributor runs before a push: the packages' own tests, and the cases on servers
//     that a change most often breaks, on the newest RabbitMQ, PostgreSQL and SQLite
//   - servers (make test-servers) is everything else that a broker or a database decides
//   - all (make test-all) adds the tests that take too long to run before every push, and the combinations that
//     [Sample] leaves out
//
// A package below integration calls [Run] in its TestMain. If [Env] is not set, as outside of the Makefile, go test
// runs every test, so that a single one can be run by its name alone.
package tier

import (
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Env selects a tier: test, servers or all. All tests run if it is empty.
const Env = "RABBITDELAY_TEST_TIER"

// The values of Env.
const (
	Test    = "test"
	Servers = "servers"
	All     = "all"
)

// Newest in an element of a pattern means the newest RabbitMQ.
const Newest = "NEWEST"

// Plan sorts the tests of a package. Tests that it does not list belong to the tier servers.
//
// An entry is the name of a test, optionally followed by the names of subtests after slashes, as in
// "TestScheduleUnique/sqlite|postgres". Each element is a regular expression that has to match the whole name.
type Plan struct {
	Test    []string // tests that make test runs
	Nightly []string // tests that only make test-all runs
}

const every = ".*"

// Everything is the plan of a package whose tests all belong to make test.
var Everything = Plan{Test: []string{every}}

// Run runs the tests of the tier that Env selects and returns the exit code, as testing.M.Run does. A -run on the
// command line takes precedence. The function newest returns the newest RabbitMQ's release line, such as 4.3; it is
// only called if the plan mentions [Newest].
func Run(m *testing.M, p Plan, newest func() string) int {
	flag.Parse()
	if err := p.check("."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	run, skip, err := p.patterns(os.Getenv(Env), newest)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if given := flag.Lookup("test.run").Value.String(); given == "" {
		set("test.run", run)
		set("test.skip", skip)
	}
	return m.Run()
}

func set(name, value string) {
	if value == "" {
		return
	}
	if err := flag.Set(name, value); err != nil {
		panic(err) // testing defines both
	}
}

// patterns returns the values of go test's -run and -skip flags for a tier.
func (p Plan) patterns(tier string, newest func() string) (run, skip string, err error) {
	switch tier {
	case "", All:
		return "", "", nil
	case Test:
		if len(p.Test) == 0 {
			return "^$", "", nil
		}
		return join(p.Test, newest), "", nil
	case Servers:
		return "", join(slices.Concat(p.Test, p.Nightly), newest), nil
	default:
		return "", "", fmt.Errorf("%s is %q, want %s, %s or %s, or nothing for every test", Env, tier, Test, Servers, All)
	}
}

// Sample picks the servers that a test runs on, for tests whose outcome rarely depends on the server. In make
// test-servers it returns one element of the list, chosen by the test's name, so that all are used about equally often.
// In the other tiers it returns the whole list, so make test-all runs every combination.
func Sample[T any](test string, list []T) []T {
	if os.Getenv(Env) != Servers || len(list) == 0 {
		return list
	}
	h := fnv.New32a()
	_, _ = io.WriteString(h, test) // never fails
	i := int(h.Sum32() % uint32(len(list)))
	return list[i : i+1]
}

// Part returns every nth element of a list in make test-servers, and the whole list in the other tiers. It is for tests
// that run without servers in make test as well, and repeat on a server only to show that it makes no difference.
func Part[T any](list []T, n int) []T {
	if os.Getenv(Env) != Servers {
		return list
	}
	var part []T
	for i := 0; i < len(list); i += n {
		part = append(part, list[i])
	}
	return part
}

// join combines entries into one pattern for go test.
func join(entries []string, newest func() string) string {
	var alternatives []string
	for _, entry := range entries {
		elements := strings.Split(entry, "/")
		for i, element := range elements {
			if strings.Contains(element, Newest) {
				element = strings.ReplaceAll(element, Newest, "newest|"+regexp.QuoteMeta(newest()))
			}
			elements[i] = "^(" + element + ")$"
		}
		alternatives = append(alternatives, strings.Join(elements, "/"))
	}
	return strings.Join(alternatives, "|")
}

var definition = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)

// check returns an error if the plan lists a test that the package in a folder does not have.
func (p Plan) check(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return err
	}
	var names []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for _, found := range definition.FindAllSubmatch(text, -1) {
			names = append(names, string(found[1]))
		}
	}
	for _, entry := range slices.Concat(p.Test, p.Nightly) {
		first, _, _ := strings.Cut(entry, "/")
		if first == every {
			continue
		}
		whole := regexp.MustCompile("^(" + first + ")$")
		if !slices.ContainsFunc(names, whole.MatchString) {
			return fmt.Errorf("the plan of this package (see tier.Plan) lists %s, but no test has that name", first)
		}
	}
	return nil
}
