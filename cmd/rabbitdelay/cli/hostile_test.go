package cli

import (
	"strings"
	"testing"
	"unicode"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// Whatever stands in a message, it does not steer the terminal.
func TestHostileMessages(t *testing.T) {
	const hostile = "\x1b[2J\r\u202ex\n"
	b := newByHand(t)
	b.fillWith(t, "q.dead", amqp.Publishing{
		MessageId: hostile, Body: []byte(hostile), ContentType: hostile, Type: hostile,
		Headers: amqp.Table{
			amqpx.HeaderReason: hostile, amqpx.HeaderQueue: hostile, amqpx.HeaderError: hostile, amqpx.HeaderAttempts: hostile,
			amqpx.HeaderDue: int64(1) << 45, hostile: hostile,
		},
	})
	for _, args := range []string{
		"peek --queue q.dead", "requeue --queue q.dead --dry-run", "trace|" + hostile + "|--queue q.dead", "requeue --queue q.dead --yes", "consume --queue q.dead --count 1",
	} {
		var list []string
		for i, part := range strings.Split(args, "|") {
			if i == 1 {
				list = append(list, part)
			} else {
				list = append(list, strings.Fields(part)...)
			}
		}
		_, stdout, stderr := b.run(t, list...)
		if i := strings.IndexFunc(stdout+stderr, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 || !strings.Contains(stdout, "202e") {
			t.Errorf("%s prints, at %d\n%q\n%q", args, i, stdout, stderr)
		}
	}
}
