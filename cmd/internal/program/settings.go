package program

import (
	"maps"
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/rabbitdelay/rabbitdelay/config"
)

// Load reads the settings. Flags override everything; more has further flags by
// setting, defaults the defaults of this command.
func (p *Program) Load(more map[string]config.Override, defaults map[string]string) (*config.Config, error) {
	overrides := map[string]config.Override{}
	for _, o := range []struct{ path, flag, value string }{
		{"broker.url", "url", p.url}, {"delay.strategy", "strategy", p.strategy}, {"delay.queue_type", "queue-type", p.queueType},
	} {
		if p.Given(o.flag) {
			overrides[o.path] = config.Override{Value: o.value, Origin: "--" + o.flag}
		}
	}
	maps.Copy(overrides, more)
	if _, ok := overrides["broker.url"]; !ok {
		for _, name := range []string{"RABBITDELAY_BROKER_URL", "AMQP_URL"} {
			if value, set := os.LookupEnv(name); set && value == "" {
				p.Notef("note: %s is set and empty, which counts as not set", name)
			}
		}
	}
	file := p.file
	if !p.Given("file") {
		file = os.Getenv(config.FileVariable)
	}
	return config.Load(config.Source{File: file, Overrides: overrides, Defaults: defaults})
}

// Database returns the setting that the flag --db of a command stands for.
func (p *Program) Database(db string) map[string]config.Override {
	if !p.Given("db") {
		return nil
	}
	return map[string]config.Override{"database.url": {Value: db, Origin: "--db"}}
}

// LogBeginning has the logs say when a process began that runs for weeks, unless
// --log-level was given.
func (p *Program) LogBeginning() {
	if !p.Given("log-level") {
		p.LogLevel = "info"
	}
}

// Logger writes to standard error.
func (p *Program) Logger() *zap.Logger {
	level, err := zapcore.ParseLevel(p.LogLevel)
	if err != nil {
		level = zapcore.WarnLevel
	}
	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = zapcore.ISO8601TimeEncoder
	encoder := zapcore.NewConsoleEncoder(enc)
	if p.JSON {
		encoder = zapcore.NewJSONEncoder(enc)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(p.Stderr)), level))
}
