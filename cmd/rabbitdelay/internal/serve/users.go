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

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/serveconf"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/term"
)

type usersRun struct {
	*app.App

	role string
}

// UsersCommand returns the users command, which changes the users file of serve.
func UsersCommand(a *app.App) *cobra.Command {
	r := &usersRun{App: a}
	c := &cobra.Command{
		Use:   "users",
		Short: "Manage the users and tokens of serve",
		Long: `Manage the file for "rabbitdelay serve --users". It contains the users who may
log in to the console, and the tokens of programs.`,
		Example: `  rabbitdelay users add anna --role operator --users users.yaml
  rabbitdelay users token grafana --role viewer --users users.yaml`,
	}
	program.Setting(c.PersistentFlags(), "serve.users", "users", "`FILE` with users and tokens; default: serve.users")
	c.AddCommand(r.addCommand(), r.tokenCommand(), r.removeCommand())
	return c
}

// command completes a command that has a single name as its argument and changes the users file.
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
		users := serveconf.Of(cfg).Users
		if users == "" {
			return errors.New("no users file was given; give --users, serve.users in the file, or RABBITDELAY_SERVE_USERS")
		}
		return change(c.Context(), users, args[0])
	}
	return c
}

func (r *usersRun) addCommand() *cobra.Command {
	return r.command(&cobra.Command{
		Use:   "add NAME",
		Short: "Add a user, or change a password and role",
		Long: `Add a user, or change a user's password and role. It asks for the password
twice. Without a terminal, it reads one line from standard input.`,
		Example: `  rabbitdelay users add anna --role operator --users users.yaml
  pass show anna | rabbitdelay users add anna --role operator --users users.yaml`,
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
		r.Notef("%[3]s: %[1]s %[2]s with the role %[4]s", did, shown.Line(name), file, r.role)
		return nil
	})
}

func (r *usersRun) tokenCommand() *cobra.Command {
	return r.command(&cobra.Command{
		Use:   "token NAME",
		Short: "Create a token for a program, and print it once",
		Long: `Create a token for a program, and print it. The file only contains its hash, so
the token cannot be printed again.`,
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
		Short:   "Remove a user or a token from the file",
		Long:    `Remove the user and the token that have this name from the file.`,
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
			err = errors.New("the two passwords differ, so nothing was changed")
		}
		return first, err
	}
	line, err := bufio.NewReader(r.Stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return []byte(strings.TrimRight(line, "\r\n")), nil
}
