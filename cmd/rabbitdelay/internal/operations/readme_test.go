package operations_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// The program in the README runs unchanged, except for the broker's address.
func TestReadmeProgram(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../../../README.md")
	suite.MustSucceed(t, err)
	program := regexp.MustCompile("(?ms)^```go\n(package main\n.*?\n)```$").FindSubmatch(readme)
	const address = `"amqp://guest:guest@127.0.0.1:5672/"`
	if len(program) != 2 || !strings.Contains(string(program[1]), address) {
		t.Fatalf("README.md contains no program that connects to %s, want one", address)
	}
	queue := suite.NewQueue(t)
	code := strings.ReplaceAll(string(program[1]), address, `"`+broker.Shared(t, broker.Options{}).URL()+`"`)
	file := filepath.Join(t.TempDir(), "main.go")
	suite.MustSucceed(t, os.WriteFile(file, []byte(strings.ReplaceAll(code, "try.me", queue)), 0o600))
	out := run(t, "../../../..", "go", "run", file)
	if !regexp.MustCompile(`^hello, after 5\.?\d*s\n$`).MatchString(out) {
		t.Errorf(`the README's program printed %q, want "hello, after 5s"`, out)
	}
}
