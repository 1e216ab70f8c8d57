// Package drain moves the messages that wait in the x-delayed-message plugin to the delay queues of a client. It reads
// and changes the plugin's table through the broker's own shell, which the caller provides. It does not depend on
// rabbitmqctl or SSH.
//
//   - drain.go: Config, Report, Look and Run, and the Lock, which allows one drain for each virtual host
//   - run.go: reads, sends, records and deletes the table in batches
//   - journal.go: the file that makes a killed run repeatable
//
// Reasons for the design:
//
//   - A message is confirmed, recorded in a file, and then deleted by the reference of its row. The next run first
//     deletes the rows that are recorded in the file, and does not send them again. If rows were deleted before
//     sending, a kill in between would lose messages.
//   - The plugin is not stopped, because suspending its process would block every producer. Messages that the plugin
//     might deliver during the run, because they are due within the margin, are left to it.
//   - Rows are deleted in the plugin's process (sys:replace_state), where no delivery can happen in between. The index
//     entry of a due time is deleted with its last row, because on 3.10 an entry without a row stops all deliveries
//     behind it.
//   - The lock proves that both ends are the same broker. The node's own shell checks for the exclusive queue. If the
//     queue does not exist there, the client's address and the shell belong to different brokers, and messages would
//     arrive where no consumer waits for them.
//   - A message without an id gets a hash of its node, due time and reference, so that a second attempt is recognised.
//   - The answer is a stream with an end marker. A batch is sent before more is read, the pipe limits the speed of the
//     broker, and an answer without its last line is an error.
package drain
