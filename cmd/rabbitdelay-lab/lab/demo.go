package lab

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay-lab/demo"
)

func (a *app) demoCommand() *cobra.Command {
	var o demo.Options
	var story string
	c := &cobra.Command{
		Use:   "demo",
		Short: "Cancel unpaid orders and publish posts in time, once each, on a real broker and database",
		Long: `demo tells two stories side by side, or one of them (--story).

Orders are placed within eight seconds, each with a message that is due 4 to 8
seconds later. About half are paid before that; two consumers, which get some of the
messages twice, cancel the others.

Posts are scheduled as tasks in the transactions that write them, due 3 to 6 seconds
later. Some are moved, cancelled or fired at once, some at the very instant at which
they are due. Each has to be published once, at its last due instant, or never.

It prints a link to the console, where both can be watched; --hold keeps that open,
and what is scheduled there happens.

At the end a ledger compares what was done with what the database holds. The ttl
strategy, which has declared delays only, tells the story of the orders.

The broker is the one at --url or AMQP_URL; else a container, where Docker has or
gets an image; else a private node of an installed rabbitmq-server. The database is
SQLite in a temporary directory, or with --db a schema (MySQL: a database) that the
demo makes on that server; a file of SQLite that is given is left alone. What the
demo makes is removed at the end.

With --json the last line is one object. The exit code is 1 when anything was early,
lost or done twice, or published although it was cancelled.`,
		Example: `  rabbitdelay-lab demo
  rabbitdelay-lab demo --hold
  rabbitdelay-lab demo --story posts --posts 1000
  rabbitdelay-lab demo --orders 2000 --queue-type classic --json
  rabbitdelay-lab demo --url amqp://user:password@host/ --db postgres://user:password@host/shop`,
		Args: program.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := told(&o, story); err != nil {
				return err
			}
			return demo.Run(c.Context(), a.Program, o)
		},
	}
	f := c.Flags()
	program.Setting(f, "database.url", "db", "database server: postgres://… or mysql://… (default SQLite)")
	f.IntVar(&o.Orders, "orders", 200, "number of orders")
	f.IntVar(&o.Posts, "posts", 100, "number of posts")
	f.StringVar(&story, "story", "all", "orders, posts or all")
	f.BoolVar(&o.Hold, "hold", false, "keep the console open after the stories, until Ctrl-C")
	_ = c.RegisterFlagCompletionFunc("story", cobra.FixedCompletions([]string{"all", "orders", "posts"}, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	return c
}

// told checks the numbers, and drops that of the story that is not told.
func told(o *demo.Options, story string) error {
	const most = 1_000_000
	switch {
	case o.Orders < 1 || o.Orders > most:
		return fmt.Errorf("--orders: %d; expected 1 to %d", o.Orders, most)
	case o.Posts < 1 || o.Posts > most:
		return fmt.Errorf("--posts: %d; expected 1 to %d", o.Posts, most)
	case story == "orders":
		o.Posts = 0
	case story == "posts":
		o.Orders = 0
	case story != "all":
		return fmt.Errorf("--story: %q; expected orders, posts or all", story)
	}
	return nil
}
