package amqpx

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// SlogLogger makes a logger of log/slog the Logger of this module's configurations: Config, schedule.Config and
// service.Options. A program that logs with log/slog needs nothing else from package zap. The level and the attributes
// of the logger apply. The name of the part that logs, such as consume, is the attribute "logger".
func SlogLogger(l *slog.Logger) *zap.Logger { return zap.New(slogCore{l.Handler()}) }

// slogCore is a zapcore.Core that writes to a slog.Handler.
type slogCore struct{ handler slog.Handler }

// slogLevel converts a zap level to a slog level. In zap, adjacent levels differ by one, in slog by four.
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

// slogAttrs converts zap fields to slog attributes. One field may become several attributes.
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
