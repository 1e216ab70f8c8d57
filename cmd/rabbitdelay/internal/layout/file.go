package layout

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/export"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// ValidateCommand returns the validate command, which checks a file without a broker.
func ValidateCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use:   "validate",
		Short: "Check a file without a broker",
		Long: `Check the settings and the file, and report each mistake with its line and
column. It needs neither a broker nor a database.`,
		Example: `  rabbitdelay validate -f delays.yaml
  RABBITDELAY_FILE=delays.yaml rabbitdelay validate --json`,
		RunE: func(*cobra.Command, []string) error { return validate(a) },
	}
}

func validate(a *app.App) error {
	c, err := a.Load(nil)
	if err != nil {
		return err
	}
	if c.File() == "" {
		return fmt.Errorf("no file was given; give -f, or set %s", config.FileVariable)
	}
	s, err := c.Offline()
	if err != nil {
		return fmt.Errorf("%s: %w", c.File(), err)
	}
	t, err := c.Describe(s)
	if err != nil {
		return fmt.Errorf("%s: %w", c.File(), err)
	}
	v := validated{c.File(), s.Name(), len(t.Exchanges), len(t.Queues), len(t.Bindings), len(c.Topology.Destinations), len(c.Schedules)}
	if a.Quiet && !a.JSON {
		return nil
	}
	return a.Show(v, "%s is valid: strategy %s; with its delay queues %d exchanges, %d queues, %d bindings; destinations: %d, schedules: %d\n",
		v.File, v.Strategy, v.Exchanges, v.Queues, v.Bindings, v.Destinations, v.Schedules)
}

type validated struct {
	File         string `json:"file"`
	Strategy     string `json:"strategy"`
	Exchanges    int    `json:"exchanges"`
	Queues       int    `json:"queues"`
	Bindings     int    `json:"bindings"`
	Destinations int    `json:"destinations"`
	Schedules    int    `json:"schedules"`
}

// SchemaCommand returns the schema command, which prints the schema of the file.
func SchemaCommand(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of the file, for editors",
		Long: `Print the JSON schema of the YAML file, which editors use to complete and check
it. "rabbitdelay validate" also checks what the values mean.`,
		Example: `  rabbitdelay schema > rabbitdelay.schema.json`,
		RunE: func(*cobra.Command, []string) error {
			_, err := a.Stdout.Write(config.Schema())
			return err
		},
	}
}

const (
	formatDefinitions = "definitions"
	formatKubernetes  = "kubernetes"
)

type exporter struct {
	*app.App

	format string
	to     export.KubernetesOptions

	user, passwordFile string
}

// ExportCommand returns the export command, which prints the objects that apply would create in the format of another
// tool.
func ExportCommand(a *app.App) *cobra.Command {
	x := &exporter{App: a}
	c := &cobra.Command{
		Use:   "export",
		Short: "Print what apply would create, for other tools",
		Long: `Print all objects defined by the settings and the file, in the format of
RabbitMQ's definitions import or of its Kubernetes operator. It does not need a
broker.`,
		Example: `  rabbitdelay export -f delays.yaml > definitions.json
  rabbitdelay export -f delays.yaml --boot-user admin \
    --boot-password-file secret > definitions.json
  rabbitdelay export -f delays.yaml --format kubernetes --cluster rabbit \
    | kubectl apply -n shop -f -`,
		RunE: func(*cobra.Command, []string) error { return x.export() },
	}
	f := c.Flags()
	program.Choice(c, &x.format, "format", formatDefinitions, "", formatDefinitions, formatKubernetes)
	f.StringVar(&x.to.Cluster, "cluster", "", "kubernetes: name of the RabbitmqCluster")
	f.StringVar(&x.to.ClusterNamespace, "cluster-namespace", "", "kubernetes: namespace of the RabbitmqCluster, if it differs from the resources' namespace")
	f.StringVar(&x.to.Namespace, "namespace", "", "kubernetes: namespace of the resources; default: kubectl's current namespace")
	f.StringVar(&x.user, "boot-user", "", "definitions: add the virtual host, and an administrator with this name")
	f.StringVar(&x.passwordFile, "boot-password-file", "", "definitions: the file with the password of --boot-user; only its hash is printed")
	return c
}

func (x *exporter) export() error {
	switch {
	case x.format == formatKubernetes && x.user+x.passwordFile != "":
		return errors.New("--boot-user and --boot-password-file only work with --format definitions")
	case (x.user == "") != (x.passwordFile == ""):
		return errors.New("expected both --boot-user and --boot-password-file, or neither")
	case x.format == formatKubernetes && x.JSON:
		return errors.New("--format kubernetes prints YAML; omit --json, or convert the output, for example with yq -o json")
	case x.format == formatKubernetes && x.to.Cluster == "":
		return errors.New("--format kubernetes needs --cluster, the name of the RabbitmqCluster")
	case x.format == formatDefinitions && x.to != export.KubernetesOptions{}:
		return errors.New("--cluster, --cluster-namespace and --namespace only work with --format kubernetes")
	}
	c, err := x.Load(nil)
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
	if x.to.Vhost, err = app.VhostOf(c); err != nil {
		return fmt.Errorf("broker.url: %w", err)
	}
	text, err := x.write(t)
	if err != nil {
		return err
	}
	_, err = x.Stdout.Write(text)
	return err
}

// write returns the topology in the requested format.
func (x *exporter) write(t topology.Topology) ([]byte, error) {
	switch {
	case x.format == formatKubernetes:
		n := len(t.Exchanges) + len(t.Queues) + len(t.Bindings)
		x.Notef("the operator has to reconcile %s, one for each exchange, queue and binding; to avoid this, use --format definitions, which prints a single file, or rabbitdelay apply",
			shown.Count(n, "resource", "resources"))
		return export.Kubernetes(t, x.to)
	case x.user == "":
		return export.Definitions(t, x.to.Vhost)
	}
	password, err := os.ReadFile(x.passwordFile)
	if err != nil {
		return nil, fmt.Errorf("--boot-password-file: %w", err)
	}
	u := export.User{Name: x.user, Password: strings.TrimRight(string(password), "\r\n")}
	if u.Password == "" {
		return nil, fmt.Errorf("--boot-password-file: %s is empty; expected a password", x.passwordFile)
	}
	return export.BootDefinitions(t, x.to.Vhost, u)
}
