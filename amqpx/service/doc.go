// Package service lets you write a service with little code. Open creates everything that a file describes: the
// strategy, a client, a store of tasks on a database, logging and telemetry. Run runs the relay, the consumers and the
// other parts of the service until one of them fails permanently or the process is asked to stop.
//
//	func main() {
//		if err := run(); err != nil {
//			slog.Error("shop", "err", err)
//			os.Exit(1)
//		}
//	}
//
//	func run() error {
//		s, err := service.Open(context.Background(), service.Options{File: "shop.yaml"})
//		if err != nil {
//			return err
//		}
//		return s.Run(context.Background(),
//			s.Consume("orders.expire", schedule.Handler(s.DB, expire)),
//			service.ServeHTTP(":8080", service.Probe(s.Health)))
//	}
//
// Link the database driver by a blank import of config/postgres, config/mysql or config/sqlite, or open the database
// yourself (Options.Database). A program that needs fewer dependencies can import only amqpx and amqpx/schedule.
//
// # Errors and exit codes
//
// Open returns errors about the file (errors.Is config.ErrConfig; a restart does not help), the database ("database:
// …", if it has not answered before the context ends) and the broker ("open: …"). Run returns nil if no part failed and
// all work was finished. Otherwise its error contains the error of each part that failed: an *amqpx.ConsumeError, the
// error that ended a relay (schedule.ErrDenied, schedule.ErrClock), or an address that is in use. If the shutdown did
// not wait for everything, the error also wraps ErrCutOff, and the messages that were being handled are delivered
// again. Exit with 1 for all of these. Under systemd, exit with a different code for config.ErrConfig, such as 78, and
// list it in RestartPreventExitStatus.
//
// It is not an error if the broker or the database becomes unavailable while Run runs: the client reconnects, handlers
// retry, and Health reports the problem.
package service

// Files, for contributors to this package:
//
//   - service.go: Options, Open, Close; the database and its tables
//   - run.go: Run, and the shutdown of a process
//   - http.go: the HTTP endpoints
