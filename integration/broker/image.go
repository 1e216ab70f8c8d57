package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/client"
)

const (
	// localImages is the repository of the images that `make images` builds.
	localImages = "rabbitdelay/rabbitmq"

	// officialImages is the repository of Docker's official images. Images whose tag ends in -management also contain
	// the web pages of the management plugin. The plugin itself is in all of them.
	officialImages = "rabbitmq"

	// EnvNextImage names an image of a RabbitMQ version that is not released yet, such as rabbitmq-next:4.4.0. Its tag
	// is the version. It is used only for that version and its release line, and never as the newest version.
	EnvNextImage = "RABBITDELAY_NEXT_IMAGE"

	// dockerAnswers is how long to wait for Docker, and pullBegins is how long to wait for a registry. They are short,
	// because a machine may have neither.
	dockerAnswers = 5 * time.Second
	pullBegins    = 10 * time.Second
	pullEnds      = 5 * time.Minute
)

// image is a local image of RabbitMQ.
type image struct {
	name    string
	id      string
	version string // such as 4.3.6, or a prefix of it
	local   bool   // built by make images
	next    bool   // from EnvNextImage
}

var officialTag = regexp.MustCompile(`^(\d+(?:\.\d+)*)(-management)?(-alpine)?$`)

// images returns the available RabbitMQ images, the newest version first. For equal versions, an image that `make
// images` built comes first.
func images(ctx context.Context, docker client.APIClient) ([]image, error) {
	ctx, cancel := context.WithTimeout(ctx, dockerAnswers)
	defer cancel()
	listed, err := docker.ImageList(ctx, client.ImageListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing images: %w", err)
	}
	var found []image
	for _, summary := range listed.Items {
		for _, name := range summary.RepoTags {
			repository, tag, _ := strings.Cut(name, ":")
			if name == os.Getenv(EnvNextImage) {
				found = append(found, image{name: name, version: tag, next: true})
				continue
			}
			switch repository {
			case localImages:
				version := summary.Labels["rabbitdelay.version"]
				if version == "" {
					version = tag
				}
				found = append(found, image{name: name, id: summary.ID, version: version, local: true})
			case officialImages:
				parts := officialTag.FindStringSubmatch(tag)
				if parts == nil {
					continue
				}
				found = append(found, image{name: name, version: officialVersion(ctx, docker, name, parts[1])})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b image) int {
		if c := compareVersions(b.version, a.version); c != 0 {
			return c
		}
		return cmp.Compare(btoi(b.local), btoi(a.local))
	})
	return found, nil
}

// officialVersion returns the full version of an official image, because a tag such as 4-management does not contain
// it.
func officialVersion(ctx context.Context, docker client.APIClient, name, tag string) string {
	inspected, err := docker.ImageInspect(ctx, name)
	if err != nil || inspected.Config == nil {
		return tag
	}
	for _, variable := range inspected.Config.Env {
		if version, ok := strings.CutPrefix(variable, "RABBITMQ_VERSION="); ok {
			return version
		}
	}
	return tag
}

// chooseImage returns the image for a release line, or the newest image for "", and the reason for the choice. If no
// image is available, it pulls the official one.
func chooseImage(ctx context.Context, docker client.APIClient, wanted string) (image, string, error) {
	found, err := images(ctx, docker)
	if err != nil {
		return image{}, "", err
	}
	for _, candidate := range found {
		switch {
		case wanted == "" && candidate.next:
		case wanted == "":
			return candidate, "the newest image here", nil
		case matches(candidate.version, wanted):
			return candidate, "the image for RabbitMQ " + wanted, nil
		}
	}
	tag := cmp.Or(wanted, "4") + "-management"
	name := officialImages + ":" + tag
	if err := pull(ctx, docker, name); err != nil {
		return image{}, "", &noImageError{version: wanted, pulled: name, err: err}
	}
	return image{name: name, version: wanted}, "just pulled", nil
}

// noImageError reports that there is no RabbitMQ image and that none can be pulled.
type noImageError struct {
	version string // empty for any
	pulled  string // image that could not be pulled
	err     error  // why it could not be pulled
}

func (e *noImageError) Error() string {
	return fmt.Sprintf("there is no local image of RabbitMQ %s, and %s cannot be pulled (%v)", cmp.Or(e.version, "in any version"), e.pulled, e.err)
}

// Unwrap returns why the image cannot be pulled.
func (e *noImageError) Unwrap() error { return e.err }

// brief summarises an error, because Docker's errors are long and do not help most readers.
func brief(err error) string {
	if _, ok := errors.AsType[*noImageError](err); ok {
		return "no container image available"
	}
	return fmt.Sprintf("no container (%v)", err)
}

// pull pulls an image. It gives up early if the registry does not start to answer.
func pull(ctx context.Context, docker client.APIClient, name string) error {
	ctx, cancel := context.WithTimeout(ctx, pullEnds)
	defer cancel()
	silent := errors.New("the registry did not answer within " + pullBegins.String())
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	watchdog := time.AfterFunc(pullBegins, func() { abort(silent) })
	defer watchdog.Stop()

	fail := func(err error) error {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	response, err := docker.ImagePull(ctx, name, client.ImagePullOptions{})
	if err != nil {
		return fail(err)
	}
	defer response.Close()
	for message, err := range response.JSONMessages(ctx) {
		if err != nil {
			return fail(err)
		}
		if message.Error != nil {
			return fail(message.Error)
		}
		watchdog.Stop()
	}
	return fail(nil)
}

// matches reports whether version belongs to the wanted release line or equals the wanted version.
func matches(version, wanted string) bool {
	return version == wanted || strings.HasPrefix(version, wanted+".")
}

// compareVersions compares versions numerically, so that 3.10.8 is before 4.0.5 and 3.9 is before 3.10.
func compareVersions(a, b string) int {
	return slices.Compare(numbers(a), numbers(b))
}

func numbers(version string) []int {
	parts := strings.Split(version, ".")
	values := make([]int, len(parts))
	for i, part := range parts {
		values[i], _ = strconv.Atoi(part)
	}
	return values
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
