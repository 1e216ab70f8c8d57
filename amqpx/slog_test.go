package amqpx_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

func TestSlogLogger(t *testing.T) {
	var out bytes.Buffer
	withoutTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	logger := amqpx.SlogLogger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: withoutTime})))
	logger.Debug("left out")
	logger.Named("consume").With(zap.String("queue", "orders")).Warn("ended",
		zap.Error(errors.New("no route")), zap.Duration("after", time.Second), zap.Int("attempt", 2), zap.Strings("of", []string{"a", "b"}))
	logger.Error("failed")
	want := "level=WARN msg=ended queue=orders logger=consume error=\"no route\" after=1s attempt=2 of=\"[a b]\"\nlevel=ERROR msg=failed\n"
	if got := out.String(); got != want {
		t.Errorf("the log:\ngot\n%swant\n%s", got, want)
	}
	if logger.Core().Enabled(zap.DebugLevel) || !logger.Core().Enabled(zap.InfoLevel) {
		t.Errorf("the logger's enabled levels: got debug %t and info %t, want the handler's: false and true",
			logger.Core().Enabled(zap.DebugLevel), logger.Core().Enabled(zap.InfoLevel))
	}
}

// A service that logs with log/slog passes its logger to the client.
func ExampleSlogLogger() {
	logger := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	client, err := amqpx.Open(context.Background(), amqpx.Config{URL: brokerURL(), Logger: amqpx.SlogLogger(logger)})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(client.Close(context.Background()))
	// Output: <nil>
}
