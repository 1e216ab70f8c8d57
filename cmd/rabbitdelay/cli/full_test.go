package cli

import (
	"strings"
	"testing"
)

// A result that could not be written is no success.
func TestFullOutput(t *testing.T) {
	t.Setenv("RABBITDELAY_DATABASE_URL", "sqlite:"+tasksDB(t))
	for _, args := range []string{
		"version", "version --json", "--version", "--help", "tasks --help", "tasks count", "tasks cancel --all --yes", "migrate", "settings",
		"schedules next --cron @daily", "users token x --role viewer --users " + t.TempDir() + "/users.yaml",
	} {
		var errs strings.Builder
		if code := Run(t.Context(), strings.Fields(args), strings.NewReader(""), &full{}, &errs); code != 1 || !strings.Contains(errs.String(), "no space left on device") {
			t.Errorf("%s: exit %d, errors %q", args, code, errs.String())
		}
	}
}
