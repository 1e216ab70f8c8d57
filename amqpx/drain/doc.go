// Package drain moves what waits in the x-delayed-message plugin into the delay queues of a client. It reads and
// changes the plugin's table through the broker's own shell, which the caller provides; it knows neither
// rabbitmqctl nor SSH.
//
//   - drain.go: Config, Report, Look and Run, and the Lock: one drain for each virtual host
//   - run.go: portions of the table: read, send, record, delete
//   - journal.go: the file that makes a killed run repeatable
//
// Why it is built so:
//
//   - A message is confirmed, noted in a file, and then deleted by its row's reference. The next run first
//     deletes what the file has, and does not send it again. Deleting before sending would lose what a kill finds
//     in between.
//   - The plugin is not stopped: suspending its process would hold up every producer. What it might deliver
//     meanwhile is left to it by a margin.
//   - Deletion runs in the plugin's process (sys:replace_state), where no delivery can come in between, and takes
//     a due instant's index entry with its last row: on 3.10 an entry without a row stops all deliveries behind
//     it.
//   - The lock proves the broker. The node's own shell looks for the exclusive queue; if it is not there, the
//     client's address and that shell are two brokers, and messages would arrive where nobody waits for them.
//   - A message without an id gets a hash of its node, instant and reference, so that a second try is recognised.
//   - The answer is a stream with an end: a portion is sent before more is read, the pipe holds the broker back,
//     and an answer without its last line is an error.
package drain
