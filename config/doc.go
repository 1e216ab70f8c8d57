// Package config reads the settings of a process from one YAML file, the
// environment and command-line flags, and builds from them what the other
// packages take: a strategy, an amqpx.Config, the whole topology, a database.
//
// The same file describes the exchanges, queues, bindings and destinations that
// package topology reads. A setting comes from, in this order: a flag
// (Source.Overrides); the environment variable RABBITDELAY_ followed by its path
// in capitals with underscores, such as RABBITDELAY_BROKER_URL or
// RABBITDELAY_DELAY_STRATEGY (lists are separated by commas); the file; its
// default. In values of the file, ${NAME} stands for an environment variable,
// ${NAME:-value} gives a value for when it is unset or empty, and $${ is a
// literal ${. Variables are put into values after the file was parsed, so what
// they contain never becomes YAML.
//
// Which databases a program can open is decided by what it links: config/postgres,
// config/mysql, config/sqlite; see OpenDB.
package config
