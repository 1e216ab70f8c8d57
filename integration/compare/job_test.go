package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
)

// Each program expires only the order that is not paid.
func TestJobs(t *testing.T) {
	t.Parallel()
	e := ready(t)
	// Declare the layout before the programs start, because a busy broker may need longer than they wait.
	s, err := openMessages(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.close(context.Background()) }()
	bin := t.TempDir()
	args := []string{"build", "-o", bin}
	for _, j := range jobs {
		args = append(args, "./"+j.dir)
	}
	if out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
		t.Fatalf("go %q: %v\n%s", args, err, out)
	}
	for _, j := range jobs {
		t.Run(j.name, func(t *testing.T) {
			t.Parallel()
			dsn, drop, err := e.database(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := drop(t.Context()); err != nil {
					t.Error(err)
				}
			}()
			cmd := exec.CommandContext(t.Context(), filepath.Join(bin, filepath.Base(j.dir)))
			cmd.Env = append(os.Environ(), "DATABASE_URL="+dsn, "REDIS_URL="+e.redis.URL(), broker.EnvURL+"="+e.broker.URL(), "TIME_TO_PAY=1s")
			cmd.Stderr = t.Output()
			out, err := cmd.Output()
			if want := "order one is paid, order two is cancelled\n"; err != nil || string(out) != want {
				t.Errorf("got the output %q (error %v), want %q", out, err, want)
			}
			paid := ""
			err = onDatabase(t.Context(), dsn, func(conn *pgx.Conn) error {
				return conn.QueryRow(t.Context(), "SELECT status FROM orders WHERE id = 'one'").Scan(&paid)
			})
			if err != nil || paid != "paid" {
				t.Errorf(`order one is %q (error %v), want "paid"`, paid, err)
			}
		})
	}
}

func TestJobsTable(t *testing.T) {
	t.Parallel()
	table, err := jobsTable()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range table[1:] {
		t.Logf("%q", row)
		if len(row[1]) != 2 || row[2] == "0" {
			t.Errorf("got the row %q, want a two-digit number of lines, and at least one of the library's names", row)
		}
	}
	for _, j := range jobs {
		names, err := namesOf(j.dir, j.library)
		t.Logf("%s (%v): %q", j.name, err, names)
	}
}
