package serve

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
)

type usersRun struct {
	*app.App

	role string
}

// UsersCommand returns the command users.
func UsersCommand(a *app.App) *cobra.Command {
	r := &usersRun{App: a}
	c := &cobra.Command{
		Use:   "users",
		Short: "Write the file of users and tokens for serve",
		Long: `users writes the file that "rabbitdelay serve --users" reads: who may log in at the
console, and tokens for programs. A viewer looks, without bodies of messages; an
operator changes things too. The file has hashes of passwords and tokens, and the key
that signs sessions; let nobody but serve read it. A running serve reads it again when
it has changed: a new password or role ends the user's sessions.`,
		Example: `  rabbitdelay users add anna --role operator --users users.yaml
  rabbitdelay users token grafana --role viewer --users users.yaml`,
	}
	program.Setting(c.PersistentFlags(), "serve.users", "users", "the `FILE` of users and tokens; default serve.users")
	c.AddCommand(r.addCommand(), r.tokenCommand(), r.removeCommand())
	return c
}

// command completes a command that has a single name as its argument and changes the file of users.
func (r *usersRun) command(c *cobra.Command, role bool, change func(ctx context.Context, file, name string) error) *cobra.Command {
	if role {
		program.Choice(c, &r.role, "role", "", "", string(console.RoleViewer), string(console.RoleOperator))
	}
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) != 1 || args[0] == "" {
			return fmt.Errorf("expected one name, got %q; see %s --help", strings.Join(args, " "), c.CommandPath())
		}
		return nil
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if role && r.role == "" {
			return errors.New(`--role: ""; expected viewer or operator`)
		}
		cfg, err := r.Load(nil)
		if err != nil {
			return err
		}
		if cfg.Serve.Users == "" {
			return errors.New("no file of users; give --users, serve.users in the file, or RABBITDELAY_SERVE_USERS")
		}
		return change(c.Context(), cfg.Serve.Users, args[0])
	}
	return c
}

func (r *usersRun) addCommand() *cobra.Command {
	return r.command(&cobra.Command{
		Use:   "add NAME",
		Short: "Add a user, or change password and role",
		Long: `add asks for a password on the terminal, twice; without a terminal it reads a line
from standard input. A password has 10 to 72 bytes.`,
		Example: `  rabbitdelay users add anna --role operator --users users.yaml
  pass show delays/anna | rabbitdelay users add anna --role operator --users users.yaml`,
	}, true, func(ctx context.Context, file, name string) error {
		password, err := r.password(ctx)
		if err != nil {
			return err
		}
		created, err := console.SetUser(file, name, console.Role(r.role), password)
		if err != nil {
			return err
		}
		did := "changed"
		if created {
			did = "added"
		}
		r.Notef("%s %s to %s as %s", did, shown.Line(name), file, r.role)
		return nil
	})
}

func (r *usersRun) tokenCommand() *cobra.Command {
	return r.command(&cobra.Command{
		Use:   "token NAME",
		Short: "Make a token for a program, and print it once",
		Long: `token prints a new token for requests to the API, as "Authorization: Bearer TOKEN".
It takes the place of one of the same name. The file has its hash only.`,
		Example: `  rabbitdelay users token grafana --role viewer --users users.yaml`,
	}, true, func(_ context.Context, file, name string) error {
		token, err := console.NewToken(file, name, console.Role(r.role))
		if err != nil {
			return err
		}
		return r.Show(map[string]string{"token": token}, "%s\n", token)
	})
}

func (r *usersRun) removeCommand() *cobra.Command {
	return r.command(&cobra.Command{
		Use:     "remove NAME",
		Short:   "Take the user and the token of a name out of the file",
		Example: `  rabbitdelay users remove anna --users users.yaml`,
	}, false, func(_ context.Context, file, name string) error {
		if err := console.RemoveUser(file, name); err != nil {
			return err
		}
		r.Notef("removed %s from %s", shown.Line(name), file)
		return nil
	})
}

// password returns a password that the user types twice, or a line of standard input if that is not a terminal.
func (r *usersRun) password(ctx context.Context) ([]byte, error) {
	if term.Is(r.Stdin) {
		first, err := r.Secret(ctx, "Password: ")
		if err != nil {
			return nil, err
		}
		second, err := r.Secret(ctx, "Again: ")
		if err == nil && !bytes.Equal(first, second) {
			err = errors.New("the two passwords differ; nothing was changed")
		}
		return first, err
	}
	line, err := bufio.NewReader(r.Stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return []byte(strings.TrimRight(line, "\r\n")), nil
}
