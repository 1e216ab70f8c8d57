package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/topology/export"
)

// Formats of export.
const (
	formatDefinitions = "definitions"
	formatKubernetes  = "kubernetes"
)

// exporter is one run of export.
type exporter struct {
	a      *app
	format string
	to     export.KubernetesOptions
}

func (a *app) exportCommand() *cobra.Command {
	x := &exporter{a: a}
	c := &cobra.Command{
		Use:   "export",
		Short: "Write what apply would declare in the form of another tool",
		Long: `export writes everything that the settings and the file describe, delay queues
included, for teams whose brokers' objects are made by another tool. It asks no
broker, and takes the plugin to be there if the settings ask for it.

  definitions  RabbitMQ's definitions in JSON, with --json too, for rabbitmqctl import_definitions;
               the virtual host must exist
  kubernetes   resources of RabbitMQ's messaging topology operator
               (rabbitmq.com/v1beta1: Exchange, Queue, Binding); deleting them
               leaves the queues on the broker (deletionPolicy: retain)

The virtual host is that of the broker's URL. After an import "rabbitdelay plan"
has nothing to create, and clients with broker.declare: nothing can work.`,
		Example: `  rabbitdelay export -f delays.yaml --format definitions > definitions.json
  rabbitdelay export -f delays.yaml --format kubernetes --cluster rabbit | kubectl apply -n shop -f -`,
		Args: program.NoArgs,
		RunE: func(*cobra.Command, []string) error { return x.run() },
	}
	f := c.Flags()
	f.StringVar(&x.format, "format", formatDefinitions, "definitions or kubernetes")
	f.StringVar(&x.to.Cluster, "cluster", "", "kubernetes: name of the RabbitmqCluster")
	f.StringVar(&x.to.ClusterNamespace, "cluster-namespace", "", "kubernetes: namespace of the RabbitmqCluster, if it is another")
	f.StringVar(&x.to.Namespace, "namespace", "", "kubernetes: namespace of the resources; default that of kubectl")
	_ = c.RegisterFlagCompletionFunc("format", cobra.FixedCompletions( // the flag exists
		[]string{formatDefinitions, formatKubernetes}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func (x *exporter) run() error {
	switch {
	case x.format != formatDefinitions && x.format != formatKubernetes:
		return fmt.Errorf("--format: %q; expected definitions or kubernetes", x.format)
	case x.format == formatKubernetes && x.a.JSON:
		return errors.New("--format kubernetes is YAML; leave --json out, or convert it, as with yq -o json")
	case x.format == formatKubernetes && x.to.Cluster == "":
		return errors.New("--format kubernetes needs --cluster, the name of the RabbitmqCluster")
	case x.format == formatDefinitions && x.to != export.KubernetesOptions{}:
		return errors.New("--cluster, --cluster-namespace and --namespace are for --format kubernetes")
	}
	c, err := x.a.Load(nil, nil)
	if err != nil {
		return err
	}
	s, err := c.Offline()
	if err != nil {
		return err
	}
	t, err := c.Describe(s)
	if err != nil {
		return err
	}
	if x.to.Vhost, err = c.Vhost(); err != nil {
		return fmt.Errorf("broker.url: %w", err)
	}
	var text []byte
	if x.format == formatDefinitions {
		text, err = export.Definitions(t, x.to.Vhost)
	} else {
		text, err = export.Kubernetes(t, x.to)
	}
	if err != nil {
		return err
	}
	_, err = x.a.Stdout.Write(text)
	return err
}
