package amqpx_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	zapobserver "go.uber.org/zap/zaptest/observer"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// Without the configure permission, Open returns an error that reports the refusal once, with advice. The log contains
// no line about bindings that are created without a lock.
func TestOpenWithoutPermissions(t *testing.T) {
	for _, version := range []string{"3.12.0", "4.3.0"} {
		synctest.Test(t, func(t *testing.T) {
			srv := amqptest.NewServer(amqptest.Options{Version: version})
			defer srv.Close()
			srv.Deny("", amqptest.PermissionConfigure, ".*")
			core, logs := zapobserver.New(zap.DebugLevel)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := amqpx.Open(ctx, amqpx.Config{URL: srv.URL(), Dial: srv.Dial, Logger: zap.New(core)})
			if err == nil {
				t.Fatal("Open without permissions: got no error, want one")
			}
			for _, says := range []string{"needs the permissions to configure", "DeclareNothing", "docs/permissions.md"} {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("RabbitMQ %s: Open returned %v, want an error with %q", version, err, says)
				}
			}
			if n := strings.Count(err.Error(), "ACCESS_REFUSED"); n != 1 {
				t.Errorf("RabbitMQ %s: got %d refusals in the error of Open, want 1: %v", version, n, err)
			}
			if n := logs.FilterMessageSnippet("without the lock").Len(); n != 0 {
				t.Errorf("RabbitMQ %s: got %d log lines about the lock, want 0", version, n)
			}
		})
	}
}
