// Package service is the shortest way to a service: Open makes what a file describes (the strategy, a client, a
// store of tasks on a database, logging, telemetry), and Run runs the relay, consumers and whatever else the
// service has, until one of them fails for good or the process is asked to stop.
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
// Link the driver of the database by a blank import of config/postgres, config/mysql or config/sqlite, or open it
// yourself (Options.Database). A program that wants less imports amqpx and amqpx/schedule alone; these have fewer
// dependencies.
//
// # Errors and exit codes
//
// Open's errors are about the file (errors.Is config.ErrConfig; a restart changes nothing), the database
// ("database: …", after it has not answered until the context's end) and the broker ("open: …"). Run returns nil
// when the process was asked to stop and everything was finished in order. Otherwise its error has each part that
// failed: an *amqpx.ConsumeError, what a relay ended with (schedule.ErrDenied, schedule.ErrClock), an address in
// use; and what was cut off (ErrCutOff), whose messages come again. Exit with 1 for all of them. Under systemd,
// exit with another code for config.ErrConfig, such as 78, and name it in RestartPreventExitStatus.
//
// A broker or a database that is gone while Run runs is no error: the client connects again, handlers retry, and
// Health has what is wrong.
//
//   - service.go: Options, Open, Close; the database and its tables
//   - run.go: Run, and the end of a process
//   - http.go: what answers over HTTP
package service
