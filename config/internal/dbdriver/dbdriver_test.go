package dbdriver_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/config"
)

// A program without a driver can load its configuration. The error from OpenDB says which package to import.
func TestNoDriver(t *testing.T) {
	for u, name := range map[config.URL]string{
		"postgres://u:hunter2@h/d": "postgres", "postgresql://u:hunter2@h/d": "postgres",
		"mysql://u:hunter2@h/d": "mysql", "mariadb://u:hunter2@h/d": "mysql", "sqlite:x.db": "sqlite",
	} {
		db, _, err := config.OpenDB(u)
		if db != nil {
			t.Errorf("OpenDB(%s): got a database, want nil", u)
		}
		if !errors.Is(err, config.ErrNoDriver) {
			t.Fatalf("OpenDB(%s): got %v, want ErrNoDriver", u, err)
		}
		if want := `import _ "github.com/rabbitdelay/rabbitdelay/config/` + name + `"`; !strings.HasSuffix(err.Error(), want) {
			t.Errorf("OpenDB(%s): got %v, want an error that ends in %q", u, err, want)
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("OpenDB(%s): got %v, want an error without the password", u, err)
		}
		if _, err := config.Listener(u); !errors.Is(err, config.ErrNoDriver) {
			t.Errorf("Listener(%s): got %v, want config.ErrNoDriver", u, err)
		}
		if _, err := os.Stat(filepath.Join("..", "..", name)); err != nil {
			t.Errorf("%s: directory of the package to import: got %v, want nil", u, err)
		}
		file := filepath.Join(t.TempDir(), "delays.yaml")
		if err := os.WriteFile(file, []byte("database: {url: '"+string(u)+"'}\n"), 0o600); err != nil {
			t.Fatalf("%s: write file: got %v, want nil", u, err)
		}
		if _, err := config.Load(config.Source{File: file}); err != nil {
			t.Errorf("%s: Load: got %v, want nil", u, err)
		}
	}
	if _, _, err := config.OpenDB("oracle://u:hunter2@h/d"); err == nil || errors.Is(err, config.ErrNoDriver) {
		t.Errorf("OpenDB of an unknown scheme: got %v, want an error other than config.ErrNoDriver", err)
	}
}
