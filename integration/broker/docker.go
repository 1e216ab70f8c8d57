package broker

import (
	"context"
	"fmt"
	"strings"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

// Docker returns a testcontainers provider with the same setup as the one in Start, for tests that need more than one
// broker. It returns an error if Docker does not answer. The caller must close the provider.
func Docker(ctx context.Context) (*testcontainers.DockerProvider, error) { return newDocker(ctx) }

// Image is a container image of RabbitMQ.
type Image struct {
	Name  string
	Binds []string // volumes to mount, for a container's HostConfig
}

// LocalImage returns an available image for a release line such as "4.3". It considers only images that
// `make images` built or that EnvNextImage names, because these read the node's name and the cluster's secret from the
// environment, while official images set them in a different way. The error wraps ErrNoBroker if there is none.
func LocalImage(ctx context.Context, docker *testcontainers.DockerProvider, releaseLine string) (Image, error) {
	found, err := images(ctx, docker.Client())
	if err != nil {
		return Image{}, err
	}
	for _, i := range found {
		if (i.local || i.next) && matches(i.version, releaseLine) {
			return Image{Name: i.name, Binds: programVolumes(ctx, docker.Client(), i)}, nil
		}
	}
	return Image{}, fmt.Errorf("%w: there is no image %s:%s", ErrNoBroker, localImages, releaseLine)
}

// programVolumes returns the mounts of the volumes with copies of an image's programs, if `make images` has created
// them for this image. It does that on machines where an image's own files are slow to read.
func programVolumes(ctx context.Context, docker client.APIClient, i image) []string {
	if !i.local {
		return nil
	}
	volume := strings.NewReplacer("/", "-", ":", "-").Replace(i.name)
	complete, err := docker.VolumeInspect(ctx, volume+"-complete", client.VolumeInspectOptions{})
	if err != nil || complete.Volume.Labels["rabbitdelay.image"] != i.id {
		return nil
	}
	return []string{volume + "-erlang:/usr/lib/erlang:ro", volume + "-rabbitmq:/usr/lib/rabbitmq:ro"}
}
