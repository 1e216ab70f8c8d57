package cli

import (
	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
)

func (a *app) pluginCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "plugin",
		Short: "Leave the x-delayed-message plugin without losing what waits in it",
		Long: `plugin is for brokers with the x-delayed-message plugin, which is archived and does
not run on RabbitMQ 4.3. status shows what still depends on it; drain moves what waits
in it into delay queues.`,
		Example: `  rabbitdelay plugin status --url amqp://user:password@broker/vhost`,
		Args:    program.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.pluginStatusCommand(), a.pluginDrainCommand())
	return c
}
