package tier

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sample is the plan of a package. make test runs TestWhole, and TestCells only on the newest broker and on SQLite.
var sample = Plan{Test: []string{"TestWhole", "TestCells/" + Newest, "TestCells/sqlite"}, Nightly: []string{"TestLong"}}

const sampleEnv = "RABBITDELAY_TIER_SAMPLE"

func TestMain(m *testing.M) {
	if os.Getenv(sampleEnv) != "" {
		os.Exit(Run(m, sample, func() string { return "4.3" }))
	}
	os.Exit(Run(m, Everything, nil))
}

func inSample(t *testing.T) {
	t.Helper()
	if os.Getenv(sampleEnv) == "" {
		t.Skip("skipped: only for the sample's plan")
	}
}

func TestWhole(t *testing.T) { inSample(t) }
func TestOther(t *testing.T) { inSample(t) }
func TestLong(t *testing.T)  { inSample(t) }
func TestCells(t *testing.T) {
	inSample(t)
	for _, cell := range []string{"3.10", "4.3", "sqlite", "mysql", "4x3"} {
		t.Run(cell, func(*testing.T) {})
	}
}

// The tiers test and servers have no test in common, and together contain all tests except the nightly one.
func TestTiers(t *testing.T) {
	for _, c := range []struct {
		tier string
		want []string
	}{
		{"test", []string{"TestCells", "TestCells/4.3", "TestCells/sqlite", "TestWhole"}},
		{"servers", []string{"TestCells", "TestCells/3.10", "TestCells/4x3", "TestCells/mysql", "TestOther"}},
	} {
		if got := passed(t, Env+"="+c.tier); !slices.Equal(got, c.want) {
			t.Errorf("tier %s ran %q, want %q", c.tier, got, c.want)
		}
	}
	for _, tier := range []string{"", "all"} {
		if got := passed(t, Env+"="+tier); len(got) != 9 {
			t.Errorf("tier %q ran %q, want all 9 tests", tier, got)
		}
	}
}

// In make test-servers, each test uses one element of a list, and many tests together use all of them.
func TestSample(t *testing.T) {
	list := []string{"3.10", "4.0", "4.1"}
	for _, tier := range []string{"", Test, All} {
		t.Setenv(Env, tier)
		if got := Sample("TestA", list); !slices.Equal(got, list) {
			t.Errorf("tier %q: got the sample %q, want the whole list", tier, got)
		}
	}
	t.Setenv(Env, Servers)
	seen := map[string]int{}
	for i := range 300 {
		name := fmt.Sprint("Test", i)
		got := Sample(name, list)
		if len(got) != 1 || !slices.Equal(got, Sample(name, list)) {
			t.Fatalf("Sample(%s): got %q, then %q, want the same single element", name, got, Sample(name, list))
		}
		seen[got[0]]++
	}
	for _, version := range list {
		if seen[version] < 50 {
			t.Errorf("%d of 300 tests use %s, want at least 50", seen[version], version)
		}
	}
	if got := Sample("TestA", list[:0]); len(got) != 0 {
		t.Errorf("the sample of an empty list: got %q, want none", got)
	}
}

func TestRunOnTheCommandLineWins(t *testing.T) {
	if got := passed(t, Env+"=test", "-test.run=^TestOther$"); !slices.Equal(got, []string{"TestOther"}) {
		t.Errorf("ran %q, want TestOther", got)
	}
}

func TestUnknownTier(t *testing.T) {
	out, err := sampleRun(t, Env+"=nightly")
	if err == nil {
		t.Fatal("running with an unknown tier: got no error")
	}
	if want := `RABBITDELAY_TEST_TIER is "nightly", want test, servers or all`; !strings.Contains(out, want) {
		t.Errorf("printed %q, want %q", out, want)
	}
}

func TestUnknownTest(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a_test.go"), []byte("func TestHere(t *testing.T) {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (Plan{Test: []string{"TestHere/4.3"}}).check(dir); err != nil {
		t.Error(err)
	}
	if err := (Plan{Nightly: []string{"TestGone"}}).check(dir); err == nil {
		t.Error("check of a plan with a test that does not exist: got no error")
	}
}

// passed returns the names of the sample's tests that ran and passed.
func passed(t *testing.T, env string, args ...string) (names []string) {
	t.Helper()
	out, err := sampleRun(t, env, args...)
	if err != nil {
		t.Fatalf("running the tests: %v\n%s", err, out)
	}
	for line := range strings.Lines(out) {
		if _, after, ok := strings.Cut(line, "--- PASS: "); ok {
			names = append(names, strings.Fields(after)[0])
		}
	}
	slices.Sort(names)
	return slices.DeleteFunc(names, func(name string) bool { return !isSample(name) })
}

func isSample(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return slices.Contains([]string{"TestWhole", "TestOther", "TestLong", "TestCells"}, first)
}

func sampleRun(t *testing.T, env string, args ...string) (string, error) {
	t.Helper()
	if os.Getenv(sampleEnv) != "" {
		t.Skip("skipped: inside a run of the sample")
	}
	c := exec.CommandContext(t.Context(), os.Args[0], append(args, "-test.v")...)
	c.Env = append(os.Environ(), sampleEnv+"=1", env)
	out, err := c.CombinedOutput()
	return string(out), err
}

func TestPart(t *testing.T) {
	list := []string{"a", "b", "c", "d"}
	for tier, want := range map[string][]string{"": list, Test: list, All: list, Servers: {"a", "d"}} {
		t.Setenv(Env, tier)
		if got := Part(list, 3); !slices.Equal(got, want) {
			t.Errorf("tier %q: got the part %q, want %q", tier, got, want)
		}
	}
}
