package amqpx_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/plugin"
)

// Open refuses a strategy that was not created by its constructor. Otherwise it would panic in a goroutine of the
// client and crash the process.
func TestStrategyThatWasNotConstructed(t *testing.T) {
	for want, s := range map[string]amqpx.Strategy{
		"Strategy: a nil *dlx.Bucket; use the result of its constructor, whose error says why it is nil":     (*dlx.Bucket)(nil),
		"Strategy: a *dlx.Bucket that was not created by its constructor; use the result of the constructor": &dlx.Bucket{},
		"Strategy: a *dlx.TTL that":         &dlx.TTL{},
		"Strategy: a *dlx.Native that":      &dlx.Native{},
		"Strategy: a *dlx.Levels that":      &dlx.Levels{},
		"Strategy: a *plugin.Strategy that": &plugin.Strategy{},
	} {
		_, err := amqpx.Open(t.Context(), amqpx.Config{URL: "amqp://127.0.0.1:1/", Strategy: s})
		if !errors.Is(err, amqpx.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("Open with a %T: got %v, want amqpx.ErrConfig with %q", s, err, want)
		}
	}
	if _, err := amqpx.NewAuto(amqpx.AutoConfig{Bucket: &dlx.Bucket{}, Plugin: (*plugin.Strategy)(nil)}); !errors.Is(err, amqpx.ErrConfig) {
		t.Errorf("NewAuto with a nil plugin: got %v, want amqpx.ErrConfig", err)
	}
}
