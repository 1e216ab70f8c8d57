package amqpx

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// SlogLogger is a logger for Config.Logger, and for that of a schedule.Store, which
// writes to a handler of log/slog. The handler's level counts. A logger's name is the
// attribute "logger".
func SlogLogger(h slog.Handler) *zap.Logger { return zap.New(slogCore{h}) }

// slogCore is a zapcore.Core on a slog.Handler.
type slogCore struct{ handler slog.Handler }

// slogLevel is a level of slog: its levels are four apart, as zap's are one.
func slogLevel(l zapcore.Level) slog.Level { return slog.Level(4 * l) }

func (c slogCore) Enabled(l zapcore.Level) bool {
	return c.handler.Enabled(context.Background(), slogLevel(l))
}

func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	return slogCore{c.handler.WithAttrs(slogAttrs(fields))}
}

func (c slogCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

func (c slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	r := slog.NewRecord(e.Time, slogLevel(e.Level), e.Message, e.Caller.PC)
	if e.LoggerName != "" {
		r.AddAttrs(slog.String("logger", e.LoggerName))
	}
	r.AddAttrs(slogAttrs(fields)...)
	return c.handler.Handle(context.Background(), r)
}

func (slogCore) Sync() error { return nil }

// slogAttrs are fields in their order; what zap makes of one may be several.
func slogAttrs(fields []zapcore.Field) []slog.Attr {
	attrs := make([]slog.Attr, 0, len(fields))
	for _, f := range fields {
		made := zapcore.NewMapObjectEncoder()
		f.AddTo(made)
		for key, value := range made.Fields {
			attrs = append(attrs, slog.Any(key, value))
		}
	}
	return attrs
}
