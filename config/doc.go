// Package config reads the settings of a process from a YAML file, the environment and command-line flags. From these
// settings it builds the arguments for the other packages: a strategy, an amqpx.Config, the whole topology and a
// database.
//
// The same file describes the exchanges, queues, bindings and destinations that package topology reads. The value of
// a setting comes from the first of these sources that sets it:
//
//  1. a flag (Source.Overrides)
//  2. the environment variable RABBITDELAY_ followed by the setting's path in capitals with underscores, such as
//     RABBITDELAY_BROKER_URL or RABBITDELAY_DELAY_STRATEGY; items of lists are separated by commas
//  3. the file
//  4. the default
//
// In the file, ${NAME} is replaced by the value of an environment variable, and ${NAME:-value} by the value after :-
// if the variable is unset or empty. $${ is a literal ${. Variables are expanded after the file has been parsed, so
// their values are never interpreted as YAML.
//
// The databases that a program can open depend on the drivers that it links: config/postgres, config/mysql and
// config/sqlite; see OpenDB.
package config

// Files, for contributors to this package:
//
//   - config.go: the settings as a struct
//   - settings.go: the table of settings that all other files use, and the parsing of values
//   - load.go: the sources and their precedence (with viper), and the error type
//   - file.go: the YAML file
//   - schema.go: the file's JSON schema
//   - validate.go: checks
//   - login.go: addresses and passwords
//   - build.go, probe.go, dial.go, database.go: the objects that are built from the settings
