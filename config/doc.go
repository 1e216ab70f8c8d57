// Package config reads the settings of a process from one YAML file, the environment and
// command-line flags, and builds from them what the other packages take: a strategy, an
// amqpx.Config, the whole topology, a database.
//
// The same file describes the exchanges, queues, bindings and destinations that package
// topology reads. A setting comes from the first of these that gives it: a flag
// (Source.Overrides); the environment variable RABBITDELAY_ followed by its path in capitals
// with underscores, such as RABBITDELAY_BROKER_URL or RABBITDELAY_DELAY_STRATEGY (lists are
// separated by commas); the file; its default. In the file, ${NAME} is the value of an
// environment variable, ${NAME:-value} the same with a value for when it is unset or empty, and
// $${ a literal ${. Variables are expanded after the file was parsed, so their values never
// become YAML.
//
// Which databases a program can open depends on what it links: config/postgres, config/mysql,
// config/sqlite; see OpenDB.
//
//   - config.go: the settings as a struct; settings.go: a row for each, which everything else
//     reads, and texts into values
//   - load.go: all sources, whose order viper decides, and the error; file.go: the YAML;
//     schema.go: its JSON schema; didyoumean.go
//   - validate.go: checks; login.go: addresses and passwords
//   - build.go, probe.go, dial.go, database.go: what is built from settings
package config
