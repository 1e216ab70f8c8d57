package dbdriver_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/config"
)

// A program that links no driver can read its configuration. When it opens the database, the error names the package to
// import.
func TestNoDriver(t *testing.T) {
	for u, name := range map[config.URL]string{
		"postgres://u:hunter2@h/d": "postgres", "postgresql://u:hunter2@h/d": "postgres",
		"mysql://u:hunter2@h/d": "mysql", "mariadb://u:hunter2@h/d": "mysql", "sqlite:x.db": "sqlite",
	} {
		db, _, err := config.OpenDB(u)
		if db != nil {
			t.Errorf("%s: a database was opened, want an error", u)
		}
		if !errors.Is(err, config.ErrNoDriver) {
			t.Fatalf("%s: got %v, want ErrNoDriver", u, err)
		}
		if want := `import _ "github.com/rabbitdelay/rabbitdelay/config/` + name + `"`; !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: got %v, want %s at its end", u, err, want)
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error shows the password: %v", u, err)
		}
		if _, err := config.Listener(u); !errors.Is(err, config.ErrNoDriver) {
			t.Errorf("listener of %s: got %v, want config.ErrNoDriver", u, err)
		}
		if _, err := os.Stat(filepath.Join("..", "..", name)); err != nil {
			t.Errorf("%v: %v", u, err)
		}
		file := filepath.Join(t.TempDir(), "delays.yaml")
		if err := os.WriteFile(file, []byte("database: {url: '"+string(u)+"'}\n"), 0o600); err != nil {
			t.Fatalf("%v: %v", u, err)
		}
		if _, err := config.Load(config.Source{File: file}); err != nil {
			t.Errorf("%s: got %v, want no error", u, err)
		}
	}
	if _, _, err := config.OpenDB("oracle://u:hunter2@h/d"); err == nil || errors.Is(err, config.ErrNoDriver) {
		t.Errorf("got error %v, want one other than config.ErrNoDriver", err)
	}
}
