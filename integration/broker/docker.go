package broker

import (
	"context"
	"fmt"

	"github.com/testcontainers/testcontainers-go"
)

// Docker returns testcontainers' provider when Docker answers, set up like the
// one that Start uses, for tests that need more than one broker. The caller
// closes it.
func Docker(ctx context.Context) (*testcontainers.DockerProvider, error) { return newDocker(ctx) }

// LocalImage returns the name of an image of a release line such as "4.3" that
// is there and that `make images` built, or that EnvNextImage names: such images
// take a node's name and a cluster's secret from the environment, and official ones
// take them otherwise.
// It fails with an error that wraps ErrNoBroker when there is none.
func LocalImage(ctx context.Context, docker *testcontainers.DockerProvider, releaseLine string) (string, error) {
	found, err := images(ctx, docker.Client())
	if err != nil {
		return "", err
	}
	for _, i := range found {
		if (i.local || i.next) && matches(i.version, releaseLine) {
			return i.name, nil
		}
	}
	return "", fmt.Errorf("%w: there is no image %s:%s", ErrNoBroker, localImages, releaseLine)
}
