package broker

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os/exec"
)

// installScript installs Debian packages without starting their services. The
// Makefile uses it too.
//
//go:embed install.sh
var installScript string

// install installs rabbitmq-server by apt-get. It needs root.
func install(ctx context.Context) error {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("there is no apt-get: %w", err)
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", installScript, "install.sh", "rabbitmq-server")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, tail(output.String()))
	}
	return nil
}
