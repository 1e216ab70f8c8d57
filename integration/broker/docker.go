package broker

import (
	"context"
	"fmt"

	"github.com/testcontainers/testcontainers-go"
)

// Docker returns a testcontainers provider with the same setup as the one in Start, for tests that need more than one
// broker. It returns an error if Docker does not answer. The caller must close the provider.
func Docker(ctx context.Context) (*testcontainers.DockerProvider, error) { return newDocker(ctx) }

// LocalImage returns the name of an available image for a release line such as "4.3". It considers only images that
// `make images` built or that EnvNextImage names, because these read the node's name and the cluster's secret from the
// environment, while official images set them in a different way. The error wraps ErrNoBroker if there is none.
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
