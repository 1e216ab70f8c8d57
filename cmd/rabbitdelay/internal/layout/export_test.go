package layout_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/clitest"
	"github.com/rabbitdelay/rabbitdelay/config"
)

func TestExportIsJSON(t *testing.T) {
	file := filepath.Join(t.TempDir(), "delays.yaml")
	if err := os.WriteFile(file, []byte("delay: {bucket: {layout: binary}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := clitest.Expect(t, 0, "export", "-f", file)
	if !json.Valid([]byte(got.Stdout)) {
		t.Errorf("the output is not JSON:\n%s", got.Stdout)
	}
}

func TestSchemaIsThatOfTheFile(t *testing.T) {
	got := clitest.Expect(t, 0, "schema")
	if got.Stdout != string(config.Schema()) {
		t.Errorf("schema printed\n%s, want the schema of the settings file\n%s", got.Stdout, string(config.Schema()))
	}
}
