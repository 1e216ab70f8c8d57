package app

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/program"
)

// A command stops soon after its database has stopped answering. Its error says so and contains the command's own
// error.
func TestWatched(t *testing.T) {
	for name, c := range map[string]struct {
		failed error // the command's error after its context was cancelled
		want   string
	}{
		"a query":           {nil, "the database has stopped answering: the database has not answered within 10s"},
		"interrupted":       {&program.StatusError{Code: 130, Err: errors.New("interrupted; to continue, give --after x")}, "give --after x"},
		"a driver's error":  {errors.New("unexpected EOF"), "; unexpected EOF"},
		"exit code without": {&program.StatusError{Code: 1}, "the database has stopped answering"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, pings := time.Now(), 0
				ctx, stop := watched(t.Context(), func(ctx context.Context) error {
					if pings++; pings < 4 {
						return nil
					}
					ctx, cancel := context.WithTimeout(ctx, Answering)
					defer cancel()
					<-ctx.Done()
					return errors.Join(errors.New("the database has not answered within 10s: context deadline exceeded"), ctx.Err())
				})
				defer stop()
				<-ctx.Done()
				failed := c.failed
				if failed == nil {
					failed = ctx.Err()
				}
				err := blamed(ctx, failed)
				if err == nil || !errors.Is(err, errStopped) || !strings.Contains(strings.ReplaceAll(err.Error(), "\n", ": "), c.want) {
					t.Errorf(`got error %v, want errStopped containing %q (with ": " for each line break)`, err, c.want)
				}
				if took := time.Since(began); took != 4*watchEvery+Answering {
					t.Errorf("the work stopped after %v, want %v", took, 4*watchEvery+Answering)
				}
			})
		})
	}
}

// The work continues while the database answers or refuses connections. If a signal stops the work, the error does not
// blame the database.
func TestWatchedGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := watched(t.Context(), func(context.Context) error { return errors.New("too many connections") })
		<-time.After(time.Hour)
		if ctx.Err() != nil {
			t.Errorf("while the database refuses connections: got the work stopped with %v, want it to continue", context.Cause(ctx))
		}
		stop()
		if err := blamed(ctx, context.Canceled); err != context.Canceled { //nolint:errorlint // it is the same error
			t.Errorf("blamed returned %v, want context.Canceled unchanged", err)
		}
	})
}
