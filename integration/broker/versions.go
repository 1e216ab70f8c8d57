package broker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// EnvTestVersion restricts Versions to one release line, such as 4.0.
const EnvTestVersion = "RABBITDELAY_TEST_VERSION"

// Versions returns the release lines that Start can provide without pulling an image, such as "3.10", "4.0" and "4.3",
// the oldest first. If AMQP_URL is set, it returns only the release line of that broker. Otherwise it returns those of
// the available images and of the installed rabbitmq-server, or only the one that RABBITDELAY_TEST_VERSION names. The
// error wraps ErrNoBroker if there is none.
func Versions(ctx context.Context) ([]string, error) {
	if url := os.Getenv(EnvURL); url != "" {
		b, err := use(ctx, Options{URL: url, Log: func(string) {}})
		if err != nil {
			return nil, err
		}
		return []string{b.Line()}, nil
	}
	var lines []string
	var errs []error
	source := Source(os.Getenv(EnvSource))
	if source != Node {
		found, err := imageLines(ctx)
		lines, errs = append(lines, found...), append(errs, err)
	}
	if source != Container {
		_, version, err := scriptsDir()
		if err == nil && version != "" {
			lines = append(lines, line(version))
		}
		errs = append(errs, err)
	}
	if only := os.Getenv(EnvTestVersion); only != "" {
		lines = slices.DeleteFunc(lines, func(l string) bool { return l != only })
	}
	if len(lines) == 0 {
		return nil, fmt.Errorf("%w; tried: %w", ErrNoBroker, errors.Join(errs...))
	}
	slices.SortFunc(lines, compareVersions)
	return slices.Compact(lines), nil
}

func imageLines(ctx context.Context) (_ []string, err error) {
	provider, err := newDocker(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, provider.Close()) }()
	found, err := images(ctx, provider.Client())
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, i := range found {
		// A tag such as 4 does not contain a release line.
		if strings.Contains(i.version, ".") {
			lines = append(lines, line(i.version))
		}
	}
	return lines, nil
}
